"""The number of machines that a demand needs: waits and cost from arrivals and drawing time.

    python -m tools.fleet --pictures-a-day 1000000 --request-seconds 2.9 --price 4.8

Requests arrive at random (Poisson), wait in one queue, and are drawn by the first replica that is
free: an M/G/c queue. The probability of a wait is Erlang's C formula. The wait is exponential, with
a mean that is scaled for a drawing time that varies little (Allen and Cunneen). Both are in
A. O. Allen, Probability, Statistics, and Queueing Theory, 2nd edition, 1990, chapter 5.
"""

import argparse
import math
from dataclasses import dataclass, replace

DAY_S = 86_400.0


@dataclass(frozen=True)
class Fleet:
    """Replicas and the demand on them.

    Attributes:
        arrivals: requests a second.
        service_s: mean seconds that a replica needs for a request.
        variation: the standard deviation of that time over its mean; 0 if it is constant.
        replicas: the number of replicas, each of which draws one request at a time.
    """

    arrivals: float
    service_s: float
    variation: float
    replicas: int

    @property
    def utilisation(self) -> float:
        """The share of time that replicas draw; from 1 on, the queue grows without end."""
        return self.arrivals * self.service_s / self.replicas

    @property
    def must_wait(self) -> float:
        """The probability that a request finds all replicas busy: Erlang's C formula."""
        load = self.arrivals * self.service_s
        block_probability = 1.0  # Erlang's B formula, from no replica upwards
        for count in range(1, self.replicas + 1):
            block_probability = load * block_probability / (count + load * block_probability)
        return block_probability / (1 - self.utilisation * (1 - block_probability))

    def wait_s(self, part: float) -> float:
        """Return the seconds within which the share `part` of all requests begins.

        Infinite if the queue grows without end.
        """
        if self.utilisation >= 1:
            return math.inf
        if self.must_wait <= 1 - part:
            return 0.0
        idle = self.replicas * (1 - self.utilisation)
        mean_s = (1 + self.variation**2) / 2 * self.service_s / idle  # over requests that wait
        return mean_s * math.log(self.must_wait / (1 - part))

    def enough(self, wait_s: float, part: float) -> "Fleet":
        """Return this fleet with the fewest replicas that begin `part` of requests in `wait_s`."""
        fleet = replace(self, replicas=max(1, math.ceil(self.arrivals * self.service_s)))
        while fleet.wait_s(part) > wait_s:
            fleet = replace(fleet, replicas=fleet.replicas + 1)
        return fleet


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not possible; expected a number above 0")
    return value


def _a_part(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(
            f"{text} is not possible; expected a number between 0 and 1"
        )
    return value


def main() -> None:
    """Print the number of replicas that a demand needs."""
    parser = argparse.ArgumentParser(prog="python -m tools.fleet")
    parser.add_argument("--pictures-a-day", type=_above_zero, required=True)
    parser.add_argument("--pictures", type=_above_zero, default=4, help="of a request")
    parser.add_argument("--request-seconds", type=_above_zero, required=True, help="for these")
    parser.add_argument("--variation", type=_above_zero, help="of these seconds")
    parser.add_argument("--peak", type=_above_zero, default=2.0, help="busiest hour over mean")
    parser.add_argument("--wait", type=_above_zero, default=10.0, help="seconds, at the peak ...")
    parser.add_argument("--part", type=_a_part, default=0.95, help="... for this part of requests")
    parser.add_argument("--price", type=_above_zero, help="of a replica's hour")
    options = parser.parse_args()

    mean = options.pictures_a_day / options.pictures / DAY_S
    peak = Fleet(options.peak * mean, options.request_seconds, options.variation or 0.0, replicas=1)
    fleet = peak.enough(options.wait, options.part)
    print(f"{mean:.2f} requests a second, {peak.arrivals:.2f} at the peak")
    print("replicas  busy at the peak  must wait  half within  95 % within  99 % within")
    for replicas in range(max(1, fleet.replicas - 2), fleet.replicas + 3):
        candidate = replace(fleet, replicas=replicas)
        waits = "  ".join(f"{candidate.wait_s(part):9.1f} s" for part in (0.5, 0.95, 0.99))
        must_wait = 1.0 if candidate.utilisation >= 1 else candidate.must_wait
        print(f"{replicas:8}  {candidate.utilisation:16.0%}  {must_wait:9.0%}  {waits}")
    print(
        f"{fleet.replicas} replicas begin {options.part:.0%} within {options.wait:g} s at the peak"
        f"; over the day they are busy {fleet.utilisation / options.peak:.0%} of the time"
    )
    if options.price:
        day_cost = 24 * options.price * fleet.replicas
        cost = 1000 * day_cost / options.pictures_a_day
        print(
            f"{day_cost:.0f} a day at {options.price:g} an hour: {cost:.2f} for a thousand pictures"
        )


if __name__ == "__main__":
    main()
