# The worker and, with another command, the payment provider for trying it out.
# The wheel carries the package alone; agents, tables and settings are the deployment, beside it.

FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY bookstore_streams bookstore_streams
RUN pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:3.11.13-slim-bookworm
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index /wheels/*.whl
# A fixed id, so that a volume keeps its owner over rebuilds.
RUN useradd --uid 10001 --create-home bookstore \
    && install --directory --owner=bookstore /var/lib/bookstore
WORKDIR /app
COPY agents agents
COPY tables tables
COPY config config
ENV BOOKSTORE_APP_ROOT=/app \
    BOOKSTORE_DATA_DIR=/var/lib/bookstore \
    PYTHONUNBUFFERED=1
USER bookstore
VOLUME /var/lib/bookstore
EXPOSE 6066
# exec form: SIGTERM has to reach the worker, which then drains and leaves its group.
CMD ["faust", "-A", "bookstore_streams", "worker"]
