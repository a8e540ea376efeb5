"""The GPU, the processes and the threads that user code finds while it is traced."""
