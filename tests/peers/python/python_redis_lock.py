"""python-redis-lock with renewal by its own thread. Its times are whole seconds, so waits are rounded up."""

import logging
import math

import redis_lock
from peer import Library, Lost, work


class PythonRedisLock(Library):
    name = package = "python-redis-lock"
    renews = True

    def socket_timeout(self, timeout):
        # A waiter is inside BLPOP for as long as its limit, which is 5 s at most here.
        return 6 + timeout

    def lock(self, name, wait):
        lock = redis_lock.Lock(self.client, name, expire=math.ceil(self.lease), auto_renewal=True)
        if wait == 0:
            acquired = lock.acquire(blocking=False)
        else:
            acquired = lock.acquire(timeout=None if wait is None else math.ceil(wait))
        return lock if acquired else None

    def unlock(self, lock):
        try:
            lock.release()
        except redis_lock.NotAcquired as error:
            raise Lost(str(error)) from error


logging.getLogger("redis_lock").setLevel(logging.CRITICAL)
work(PythonRedisLock())
