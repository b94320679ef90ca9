"""What the Greeting does, with kopf: the peer of `cargo xtask bench greeting`."""

import os

import kopf

GREETINGS = ("example.com", "v1", "greetings")
INTERVAL = float(os.environ.get("INTERVAL", "60"))


@kopf.on.create(*GREETINGS)
def greet(spec, **_):
    print(f"Greeting: {spec['message']}")


@kopf.on.create(*GREETINGS)
def created(spec, **_):
    print(f"Create: {spec['message']}")


@kopf.on.update(*GREETINGS)
def updated(spec, **_):
    print(f"Update: {spec['message']}")


@kopf.on.delete(*GREETINGS)
def deleted(spec, **_):
    print(f"Delete: {spec['message']}")


@kopf.timer(*GREETINGS, interval=INTERVAL)
def tick(spec, **_):
    print(f"Timer: {spec['message']}")
