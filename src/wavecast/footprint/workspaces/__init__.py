"""What libraries and kernels take for themselves while an op runs, from shapes and the GPU."""
