"""The Greeting's handlers with kopf: the peer of `cargo xtask bench greeting`."""

import os

import kopf

GREETINGS = ("example.com", "v1", "greetings")
INTERVAL = float(os.environ.get("INTERVAL", "60"))


def put(line):
    """Prints a line with one system call. print() uses a second one for the line end, so the lines of threads mix."""
    os.write(1, f"{line}\n".encode())


@kopf.on.create(*GREETINGS)
def greet(spec, **_):
    put(f"Greeting: {spec['message']}")


@kopf.on.create(*GREETINGS)
def created(spec, **_):
    put(f"Create: {spec['message']}")


@kopf.on.update(*GREETINGS)
def updated(spec, **_):
    put(f"Update: {spec['message']}")


@kopf.on.delete(*GREETINGS)
def deleted(spec, **_):
    put(f"Delete: {spec['message']}")


@kopf.timer(*GREETINGS, interval=INTERVAL)
def tick(spec, **_):
    put(f"Timer: {spec['message']}")
