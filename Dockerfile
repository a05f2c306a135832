# The image of devhost: see docs/image.md.
#
# It holds one Python, devhost, and the libraries that they need: no shell, no package manager,
# nothing that a daemon does not use. All of it comes from BASE, a slim image of a distribution
# with glibc (the wheels of our dependencies are for glibc) and with pip; the last stage is made
# of files and not of BASE itself, which alone is as large as the image may be.

# The digest is that of the index for all architectures; update it with the tag.
ARG BASE=docker.io/library/python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM ${BASE} AS build

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore

WORKDIR /src

# The dependencies first: this layer stays as it is while only devhost changes. Wheels only, so
# that an architecture without one fails here and not after an hour of compiling. With hashes: no
# index and no mirror can give something else.
COPY tools/image/requirements.txt tools/image/build-requirements.txt ./
RUN for each in devhost build; do python3 -m venv --without-pip /opt/$each || exit; done \
    && python3 -m pip --python /opt/devhost/bin/python3 install --no-compile --no-deps --only-binary=:all: --require-hashes -r requirements.txt \
    && python3 -m pip --python /opt/build/bin/python3 install --no-deps --only-binary=:all: --require-hashes -r build-requirements.txt

# A wheel of devhost, installed: not a link to these sources.
COPY pyproject.toml README.md LICENSE ./
COPY devhost devhost
RUN python3 -m pip --python /opt/build/bin/python3 wheel --no-build-isolation --no-deps --no-index --wheel-dir=/opt/wheel . \
    && python3 -m pip --python /opt/devhost/bin/python3 install --no-compile --no-deps --no-index /opt/wheel/*.whl

# What runs, and nothing else, below /rootfs, as bytecode too: the root of a container is read-only.
# Then a try whether it is all there.
COPY tools/image/assemble.py tools/image/sbom.py /
RUN python3 -B /assemble.py /opt/devhost /rootfs \
    && python3 -B /sbom.py /rootfs \
    && chroot /rootfs /opt/devhost/bin/python3 -B -c "import devhost.node.node, devhost.cli.run_command"


FROM scratch

COPY --from=build /rootfs/ /

# devhost is found by PATH, so that `command: [devhost]` and `kubectl exec POD -- devhost` work.
# The bytecode is in the image; writing more of it would only fail. Nothing is imported from where
# devhost happens to be started. One arena of malloc takes 5 MiB less with 1,000 resources than one
# for each core and more.
ENV PATH=/opt/devhost/bin:/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    MALLOC_ARENA_MAX=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1

# Root, since kubelet's directory and sockets are root's: 0750 and 0755, and connecting to a
# socket needs the right to write to it. No capability is used, no privilege is gained, and
# nothing is written outside of what is mounted: the chart drops and locks all of that.
# hadolint ignore=DL3002
USER 0:0

WORKDIR /

# The exec form: SIGTERM has to reach devhost, which is process 1. No init before it: devhost
# kills and buries what its commands leave behind.
ENTRYPOINT ["devhost"]
CMD ["run"]

# Given by who publishes; a build does not know them, and without them it is the same each time.
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
ARG SOURCE=
ARG BASE
LABEL org.opencontainers.image.title="devhost" \
      org.opencontainers.image.description="A configuration-driven Kubernetes device plugin host: one YAML file, many resources" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.name="${BASE}"
