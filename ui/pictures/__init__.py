"""The gallery, the panel of an opened picture, and the files behind them."""
