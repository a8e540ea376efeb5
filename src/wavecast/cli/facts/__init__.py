"""Commands about hardware, prices, the suite and this machine."""
