"""The scratch memory of libraries and kernels, predicted from the shapes of ops and the GPU."""
