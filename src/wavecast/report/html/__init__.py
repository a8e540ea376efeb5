"""Results as self-contained pages of HTML, and the parts that such pages are made of."""
