# syntax=docker/dockerfile:1
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
# An index of your own: --build-arg PIP_INDEX_URL=…
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# Without the code for NVIDIA's cards, several gigabytes: --build-arg TORCH=cpu, from PyTorch's index or
# a mirror of it, whose files are other ones than those that the lock has hashes of.
ARG TORCH
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/gradcam
WORKDIR /src
COPY requirements.lock deploy/without-torch.awk ./
RUN if [ "$TORCH" = cpu ]; then \
      grep -oE '^torch(vision)?==[^ ]+' requirements.lock > torch.txt \
      && /opt/gradcam/bin/pip install --no-deps --index-url "$TORCH_INDEX" --requirement torch.txt \
      && awk -f without-torch.awk requirements.lock > rest.lock \
      && /opt/gradcam/bin/pip install --no-deps --require-hashes --requirement rest.lock; \
    else \
      /opt/gradcam/bin/pip install --require-hashes --requirement requirements.lock; \
    fi
COPY pyproject.toml README.md LICENSE ./
COPY cam cam
COPY service service
RUN /opt/gradcam/bin/pip install --no-deps .
# Byte code that stays valid whatever time a builder gives the files; the service's user cannot write
# any. Some packages contain files for other versions of Python, which do not compile.
RUN /opt/gradcam/bin/python -m compileall -qq -f -j 0 --invalidation-mode unchecked-hash \
    /opt/gradcam/lib || test $? -eq 1

FROM ${PYTHON_IMAGE}
# What opencv-python links against.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libgl1 libglib2.0-0 libxcb1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin gradcam \
 && install --directory --owner 10001 /jobs \
 && install --directory --owner 10001 --mode 700 /cache
COPY --from=build /opt/gradcam /opt/gradcam
ENV PATH=/opt/gradcam/bin:$PATH \
    GRADCAM_HOST=0.0.0.0 \
    GRADCAM_CACHE=/tmp/gradcam-cache \
    GRADCAM_JOBS=/jobs \
    GRADCAM_PROBE_PORT=8001 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /tmp
EXPOSE 8000 8001
HEALTHCHECK --interval=10s --timeout=3s --start-period=90s --retries=3 \
  CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + (os.environ['GRADCAM_PROBE_PORT'].removeprefix('0') or os.environ.get('GRADCAM_PORT', '8000')) + '/readyz', timeout=2)"]
CMD ["gradcam", "serve"]
