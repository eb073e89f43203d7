# One image: the operator, the worker that init containers copy into stock vLLM images, and the simulated engine.
#
#   docker build --tag REGISTRY/evenflow:0.1.0 . && docker push REGISTRY/evenflow:0.1.0
#
# The Python of the tests. Name another tag or a digest with --build-arg.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
# For a mirror: --build-arg PIP_INDEX_URL=…
ARG PIP_INDEX_URL
WORKDIR /src
COPY . .
# The second one is for the environment that builds the wheel.
ENV PIP_CONSTRAINT=/src/constraints.txt \
    PIP_BUILD_CONSTRAINT=/src/constraints.txt
# The environment holds no pip. Byte code that is checked by nothing needs no time stamps: the same sources, the same files.
RUN python -m venv --without-pip /opt/evenflow/venv \
 && python -m pip --python /opt/evenflow/venv install --no-cache-dir --no-compile --disable-pip-version-check --root-user-action ignore \
      '.[operator,worker]' \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/evenflow/venv
# Where the operator's init containers look for it.
RUN /opt/evenflow/venv/bin/evenflow worker install --target /opt/evenflow/packages

FROM ${PYTHON}
LABEL org.opencontainers.image.title="evenflow" \
      org.opencontainers.image.description="Operator, worker and simulated engine of Evenflow" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/evenflow /opt/evenflow
ENV PATH=/opt/evenflow/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
# A number, so that runAsNonRoot can be checked; the user of the engine pods.
USER 2000:2000
WORKDIR /tmp
ENTRYPOINT ["evenflow"]
CMD ["operator"]
