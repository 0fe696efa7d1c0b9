"""`gradcam export`: a model and its map in one file of ONNX or OpenVINO."""
