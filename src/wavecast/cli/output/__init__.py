"""What commands write: results, files, progress and help."""
