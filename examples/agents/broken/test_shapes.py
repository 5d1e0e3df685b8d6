import unittest

from shapes import rectangle_area, triangle_area


class TestShapes(unittest.TestCase):
    def test_rectangle_area(self):
        self.assertEqual(rectangle_area(3, 4), 12)
        self.assertEqual(rectangle_area(0, 4), 0)

    def test_triangle_area(self):
        self.assertEqual(triangle_area(3, 4), 6)
