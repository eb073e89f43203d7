"""What a pod of the pool looks like: its manifest, its worker config, and the patches that bring it there."""
