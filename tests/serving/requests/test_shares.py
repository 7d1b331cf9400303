"""Limits on amounts in use, in total and for each address."""

from serving.requests.shares import Shares, first_to_go


def test_one_address_cannot_take_everything():
    shares = Shares(4, 2)
    assert [shares.take("a") for _ in range(3)] == [True, True, False]
    assert shares.take("b", 2)
    assert not shares.has_room()
    assert not shares.take("c")


def test_a_share_given_back_can_be_taken_again():
    shares = Shares(4, 2)
    shares.take("a", 2)
    shares.give_back("a", 1)
    assert shares.take("a")
    assert not shares.take("a")
    assert shares.has_room(2)


def test_addresses_that_hold_nothing_are_not_remembered():
    shares = Shares(4, 2)
    for i in range(100):
        assert shares.take(f"{i}")
        shares.give_back(f"{i}")
    assert not shares._used


def test_the_oldest_of_the_greediest_address_goes_first():
    kept = [("old", "a", 1), ("first", "b", 2), ("second", "b", 2), ("new", "a", 1)]
    assert first_to_go(kept) == "first"
    assert first_to_go(kept[:1]) == "old"
