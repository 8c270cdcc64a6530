"""Programs without a fault; most of them would trip a naive rule."""
