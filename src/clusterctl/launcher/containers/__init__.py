"""Container images: building, importing and running them; references, mounts and pyxis flags."""
