# docker build -t sdxl-jax . && docker run -p 7860:7860 sdxl-jax
# ACCELERATOR is cpu, tpu, cuda12 or cuda13. Without an accelerator the miniature in the image is served
# and nothing is downloaded; with one, SDXL is fetched into the cache: mount a volume there.
FROM python:3.11-slim

ARG ACCELERATOR=cpu
# Not empty: with Ray, for deploy/kuberay.yaml.
ARG CLUSTER=

RUN useradd --create-home --uid 1000 user
USER 1000
WORKDIR /home/user/app
ENV PATH=/home/user/.local/bin:$PATH \
    PYTHONPATH=/home/user/app \
    PYTHONUNBUFFERED=1 \
    HOST=0.0.0.0 \
    PORT=7860 \
    HF_HOME=/home/user/.cache/huggingface \
    CACHE_DIR=/home/user/.cache/sdxl-jax
RUN mkdir --parents /home/user/.cache/huggingface /home/user/.cache/sdxl-jax && \
    chmod 700 /home/user/.cache/sdxl-jax

COPY --chown=user requirements*.txt ./
RUN pip install --no-cache-dir --user --requirement "requirements-$ACCELERATOR.txt" \
    ${CLUSTER:+--requirement requirements-cluster.txt}
COPY --chown=user . .

EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=15m CMD \
    ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['PORT'] + '/healthz', timeout=4)"]
CMD ["python", "app.py"]
