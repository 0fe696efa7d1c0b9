"""Maps as pictures: numpy and OpenCV, no torch."""
