"""What would make a training step faster, smaller or cheaper?"""
