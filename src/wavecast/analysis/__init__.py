"""What a prediction says when it is looked at: profiles, comparisons, evaluations."""
