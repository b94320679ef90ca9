"""What the Greeting does, with kopf: the peer of `cargo xtask bench greeting`."""

import os

import kopf

GREETINGS = ("example.com", "v1", "greetings")
INTERVAL = float(os.environ.get("INTERVAL", "60"))


def say(line):
    """Prints a line by one call: print() writes the line end by a second one, and the lines of two threads mix."""
    os.write(1, f"{line}\n".encode())


@kopf.on.create(*GREETINGS)
def greet(spec, **_):
    say(f"Greeting: {spec['message']}")


@kopf.on.create(*GREETINGS)
def created(spec, **_):
    say(f"Create: {spec['message']}")


@kopf.on.update(*GREETINGS)
def updated(spec, **_):
    say(f"Update: {spec['message']}")


@kopf.on.delete(*GREETINGS)
def deleted(spec, **_):
    say(f"Delete: {spec['message']}")


@kopf.timer(*GREETINGS, interval=INTERVAL)
def tick(spec, **_):
    say(f"Timer: {spec['message']}")
