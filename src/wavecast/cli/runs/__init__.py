"""Commands about past runs, and models of layers."""
