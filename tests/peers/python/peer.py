"""What the workers for Python libraries have in common: ../README.md describes the lines."""

import importlib.metadata
import json
import os
import queue
import sys
import threading
import time

import redis
from redis.sentinel import Sentinel


class Lost(Exception):
    """The lock was certainly not held."""


class Library:
    package = ""
    renews = False

    def open(self, servers):
        """Keeps a client of the server, or of the master that the Sentinels name."""
        self.lease = servers["lease_ms"] / 1e3
        options = {
            "socket_connect_timeout": servers["timeout_ms"] / 1e3,
            "socket_timeout": self.socket_timeout(servers["timeout_ms"] / 1e3),
            "client_name": servers["client_name"],
        }
        if sentinel := servers.get("sentinel"):
            addresses = [address.rsplit(":", 1) for address in sentinel["addresses"]]
            watched = Sentinel(addresses, sentinel_kwargs={"socket_timeout": servers["timeout_ms"] / 1e3})
            self.client = watched.master_for(sentinel["service"], password=sentinel["password"], **options)
        else:
            self.client = redis.Redis.from_url(servers["urls"][0], **options)

    def socket_timeout(self, timeout):
        return timeout

    def lock(self, name, wait):
        """A held lock; None if others still hold it. `wait` is in seconds, 0 for one attempt, None for no limit."""
        raise NotImplementedError

    def unlock(self, lock):
        """Raises Lost if the lock was not held."""
        raise NotImplementedError


class Thread(threading.Thread):
    def __init__(self, library, say):
        super().__init__(daemon=True)
        self.library, self.say = library, say
        self.commands = queue.SimpleQueue()
        self.held = None
        self.start()

    def run(self):
        while True:
            command = self.commands.get()
            try:
                answer = self.do(command)
            except Lost as lost:
                answer = {"lost": str(lost)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.say(command, answer)

    def do(self, command):
        match command["op"]:
            case "lock":
                wait = command["wait_ms"]
                self.held = self.library.lock(command["names"][0], None if wait is None else wait / 1e3)
                return {"busy": True} if self.held is None else {"ok": True}
            case "hold":
                # Neither library tells of a loss, or knows a deadline, without asking a server.
                time.sleep(command["ms"] / 1e3)
            case "write":
                self.library.client.rpush(command["key"], command["entry"])
            case "unlock":
                self.library.unlock(self.held)
        return {"ok": True}


def work(library):
    writing = threading.Lock()

    def say(command, answer):
        answer |= {"id": command["id"], "at": time.monotonic_ns()}
        with writing:
            print(json.dumps(answer), flush=True)

    threads = {}
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "describe":
            version = importlib.metadata.version(library.package)
            described = {"library": library.name, "version": version, "kinds": ["mutex"], "renews": library.renews}
            say(command, described | {"deployments": ["one", "sentinel"], "guards": False})
        elif command["op"] == "open":
            try:
                library.open(command)
                say(command, {"ok": True})
            except Exception as error:
                say(command, {"error": str(error)})
        else:
            number = command["thread"]
            if number not in threads:
                threads[number] = Thread(library, say)
            threads[number].commands.put(command)
    os._exit(0)
