"""What training costs in money."""
