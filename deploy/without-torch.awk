# Prints a lock file without PyTorch and what only its build for NVIDIA's cards needs, which the build
# for CPUs from another index stands for: awk -f deploy/without-torch.awk requirements.lock
/^[A-Za-z0-9]/ { left_out = /^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z]+)==/ }
!left_out
