# syntax=docker/dockerfile:1
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim

# The locks of what is installed, in a stage of their own: the packages are the same ones, and the
# layer with them is not made anew, as long as these stay the same.
FROM ${PYTHON_IMAGE} AS locked
# Without the code for NVIDIA's cards, several gigabytes: --build-arg TORCH=cpu, from PyTorch's index or
# a mirror of it, whose files are other ones than those that the lock has hashes of.
ARG TORCH
# The packages of extras of pyproject.toml: --build-arg EXTRAS=hf,text
ARG EXTRAS
WORKDIR /src
COPY pyproject.toml requirements.lock requirements-test.lock deploy/without-torch.awk deploy/extras.py ./
# Other than in the lock of the service: psycopg, for jobs that several replicas share; gRPC; OpenCV without
# windows, which needs no X11 and Mesa; and no Triton, whose kernels need a C compiler on the machine.
RUN if [ "$TORCH" = cpu ]; then \
      grep -oE '^torch(vision)?==[^ ]+' requirements.lock > torch.txt \
      && awk -f without-torch.awk requirements.lock > service.lock; \
    else \
      : > torch.txt && cp requirements.lock service.lock; \
    fi \
 && awk '/^[a-z]/ { kept = !/^(opencv-python|triton)==/ } kept' service.lock > image.lock \
 && awk '/^[a-z]/ { kept = /^triton==/ } kept' service.lock > triton.lock \
 && awk '/^[a-z]/ { kept = /^opencv-python-headless==/ } kept' requirements-test.lock >> image.lock \
 && python3 extras.py "grpc,postgres,$EXTRAS" >> image.lock

FROM ${PYTHON_IMAGE} AS installed
# An index of your own: --build-arg PIP_INDEX_URL=…
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PYTHON=/opt/gradcam/bin/python
RUN python3 -m venv --without-pip /opt/gradcam
WORKDIR /src
COPY --from=locked /src/torch.txt /src/image.lock ./
RUN if [ -s torch.txt ]; then \
      python3 -m pip install --no-compile --no-deps --index-url "$TORCH_INDEX" --requirement torch.txt; \
    fi \
 && python3 -m pip install --no-compile --no-deps --require-hashes --requirement image.lock

FROM installed AS packages
# What only compilers and the packages' own tests read; what nothing loads: cuSOLVER for several cards
# and OpenVINO's other devices and formats.
RUN find /opt/gradcam/lib -depth \
    \( -type d \( -name include -o -name tests \) -o -name '*.a' -o -name 'libcusolverMg.so*' -o -name 'protoc*' -path '*/bin/*' \
       -o -path '*/openvino/libs/*' \( -name '*_gpu_plugin*' -o -name '*_npu_plugin*' -o -name cache.json \
          -o -name '*_tensorflow*' -o -name '*_paddle*' -o -name '*_gguf*' \) \) \
    -exec rm -r {} +
# Byte code that stays valid whatever time a builder gives the files; the service's user cannot write
# any. Some packages contain files for other versions of Python, which do not compile.
RUN /opt/gradcam/bin/python -m compileall -qq -j 0 --invalidation-mode unchecked-hash /opt/gradcam/lib \
    || test $? -eq 1

FROM packages AS service
COPY pyproject.toml README.md LICENSE ./
COPY cam cam
COPY service service
RUN python3 -m pip install --no-compile --no-deps --prefix /opt/service . \
 && /opt/gradcam/bin/python -m compileall -qq --invalidation-mode unchecked-hash /opt/service/lib
# Every module finds what it imports among the packages (Ray is not one of them).
RUN PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/src /opt/gradcam/bin/python -c "import pkgutil, importlib, cam, service; \
    [importlib.import_module(m.name) for p in (cam, service) for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.') \
     if not m.name.startswith(('service.ray', 'service.features.ray', 'service.client', 'service.__main__'))]"

# `docker build --target compiler`: the service with a compiler and Triton, for `gradcam compile`. What
# it writes into the folder of GRADCAM_CACHE the service loads, which needs neither.
FROM installed AS compiler
# The compiler's version is that of the base image's distribution.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --gid 0 --no-create-home --shell /usr/sbin/nologin gradcam \
 && install --directory --owner 10001 --group 0 --mode 700 /cache
COPY --from=locked /src/triton.lock ./
RUN if [ -s triton.lock ]; then \
      python3 -m pip install --no-compile --no-deps --require-hashes --requirement triton.lock; \
    fi
COPY --from=service /opt/service /opt/gradcam
ENV PATH=/opt/gradcam/bin:$PATH HOME=/tmp GRADCAM_CACHE=/cache PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 10001
ENTRYPOINT ["gradcam", "compile"]

FROM ${PYTHON_IMAGE}
# Any user may serve. One without a name in the image belongs to group 0, which may write jobs. Jobs
# are kept in the user's folder for them, not in one that a setting names, because the service starts
# without the former where the disk is read-only.
RUN useradd --system --uid 10001 --gid 0 --no-create-home --shell /usr/sbin/nologin gradcam \
 && install --directory --owner 10001 --group 0 --mode 770 /jobs \
 && install --directory --owner 10001 --group 0 --mode 700 /cache \
 && install --directory /var/lib/gradcam \
 && ln --symbolic /jobs /var/lib/gradcam/jobs
ENV PATH=/opt/gradcam/bin:$PATH \
    HOME=/tmp \
    XDG_STATE_HOME=/var/lib \
    GRADCAM_HOST=0.0.0.0 \
    GRADCAM_CACHE=/tmp/gradcam-cache \
    GRADCAM_PROBE_PORT=8001 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /tmp
EXPOSE 8000 8001
HEALTHCHECK --interval=10s --timeout=3s --start-period=90s --retries=3 \
  CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + (os.environ['GRADCAM_PROBE_PORT'].removeprefix('0') or os.environ.get('GRADCAM_PORT', '8000')) + '/readyz', timeout=2)"]
ENTRYPOINT ["gradcam"]
CMD ["serve"]
# The packages, and over them the service: a change of its code changes the second layer alone.
COPY --from=packages /opt/gradcam /opt/gradcam
COPY --from=service /opt/service /opt/gradcam
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="gradcam-service" \
      org.opencontainers.image.description="Class activation maps of vision models over HTTP" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      com.amazonaws.sagemaker.capabilities.accept-bind-to-port="true" \
      com.amazonaws.sagemaker.capabilities.multi-models="true"
