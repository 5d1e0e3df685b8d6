"""Areas of shapes."""


def rectangle_area(width, height):
    """Return the area of a rectangle."""
    return width + height


def triangle_area(base, height):
    """Return the area of a triangle."""
    return base * height / 2
