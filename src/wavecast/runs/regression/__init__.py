"""Models of layers and of whole runs, fitted to what past trainings took (Gianniti et al.)."""
