"""redis-py's own Lock with its defaults, but for `timeout`: by default a key never expires. Nothing renews a hold."""

from peer import Library, Lost, work
from redis.exceptions import LockNotOwnedError


class RedisPy(Library):
    name, package = "redis-py", "redis"

    def lock(self, name, wait):
        lock = self.client.lock(name, timeout=self.lease)
        if wait == 0:
            acquired = lock.acquire(blocking=False)
        else:
            acquired = lock.acquire(blocking_timeout=wait)
        return lock if acquired else None

    def unlock(self, lock):
        try:
            lock.release()
        except LockNotOwnedError as error:
            raise Lost(str(error)) from error


work(RedisPy())
