"""Container images: references, mounts, and the flags that tell pyxis about them."""
