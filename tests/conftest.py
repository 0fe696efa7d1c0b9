import cv2
import torch

# Two worker processes' worth of threads on a small machine only fight each other.
torch.set_num_threads(2)
cv2.setNumThreads(2)
