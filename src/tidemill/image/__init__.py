"""What sites read of images and profiles; both are made elsewhere, by the extension `images` and on nodes."""
