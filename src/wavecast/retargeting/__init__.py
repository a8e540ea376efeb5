"""How a traced step changes for another GPU family: its attention kernels, chosen again."""
