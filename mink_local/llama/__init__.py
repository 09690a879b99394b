"""llama.cpp through ctypes: weights, context, devices, samplers."""
