-- fair: who of the queue is next. In front of each script of the fair lock.
--
-- KEYS[2]  queue     list of tickets, the next one first
-- KEYS[3]  timeouts  sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel   base: a waiter listens at this, ':' and its ticket
--
-- Each script has an argument grace_ms: how long at most a place lives on whose waiter was notified and did not listen.
--
--   n > 0   n ms
--   0       as long as its timeout, since in a cluster one node does not know who listens
--   n < 0   as long as its timeout, since the connection was made only (-1 - n) tenths of a second ago: after an outage
--           others may be about to connect again. Nor does it end a grace that began before it was made. It notifies the
--           first that listens: that one may be connected for longer, and nobody is passed by a message

-- How many of the dead one call removes, and how many that do not listen it passes: there may be thousands. Hundreds may
-- leave at the same time: where the head has its grace, each of them passes a few.
local MOST, MOST_PASSED, FEW = 500, 128, 16

-- How long Redisson's waiters live unless configured otherwise.
local REDISSON = 300000

-- Fractions of a millisecond that mark a timeout: as the time that the head gets where nobody showed a sign of life; as
-- the grace of one that did not listen when it was notified.
local SILENT, UNHEARD = 1 / 2048, 1 / 4096

-- How the tickets of this library end; those of Redisson do so in one of 65,536 processes.
local OURS = '1a7c:%d+$'

local function now_ms()
  local time = redis.call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- One without a timeout is dead: nothing else would ever end it.
local function dies_at(waiter)
  return tonumber(redis.call('zscore', KEYS[3], waiter) or 0)
end

-- Removes the head, and returns the next.
local function remove(head)
  redis.call('lpop', KEYS[2])
  redis.call('zrem', KEYS[3], head)
  return redis.call('lindex', KEYS[2], 0)
end

-- Removes these places, and returns how many of them there were.
local function remove_places(...)
  -- In different numbers where one of the two keys was evicted or deleted: Redisson never purges a place without a timeout.
  local is_uneven = redis.call('zcard', KEYS[3]) ~= redis.call('llen', KEYS[2])
  local removed = 0
  for _, ticket in ipairs({...}) do
    local timed = redis.call('zrem', KEYS[3], ticket)
    if timed == 1 or is_uneven then
      timed = math.max(timed, redis.call('lrem', KEYS[2], 1, ticket))
    end
    removed = removed + timed
  end
  return removed
end

local function set_timeout(waiter, at)
  redis.pcall('zadd', KEYS[3], string.format('%.10f', at), waiter)
end

-- How many heard that the lock is free; nil for a user without rights on the channel, whose waiters poll.
local function publish(waiter)
  local heard = redis.pcall('publish', KEYS[4] .. ':' .. waiter, '0')
  return type(heard) == 'number' and heard or nil
end

-- Whether one whose time is over keeps its place even so, of those with a grace.
local function outlives_its_grace(waiter, at, now, grace_ms)
  if at % 1 ~= UNHEARD then
    return false
  end
  -- It listens by now, as one of Redisson's may that has not asked again. Then it gets half a second to do so.
  if publish(waiter) ~= 0 then
    set_timeout(waiter, now + 500)
    return true
  end
  -- All of it may have been an outage; but nobody lives for longer than without a grace.
  return grace_ms < 0 and at > now - 10000 and at - 500 < now + (grace_ms + 1) * 100
end

-- Notifies the head that the lock is free. If nobody listens, its process may have died, or is about to subscribe: the
-- place ends after a grace, unless its waiter asks before. The next is notified as well, which asks and comes back then,
-- and so on to the first that listens or to the one that asks now.
-- Redisson cannot refresh a place, takes the timeout of the last one for its own, and lowers all behind it when it takes
-- the lock. So nobody behind one of its places gets a grace, and of those themselves only one at the head. It also asks
-- without a pause while the lock is free and not its own, so one in the middle is woken only if nobody else listens.
-- For the last place nobody waits, except those who try once.
--
-- Returns how many heard it, and until when the head lives.
local function notify(head, grace_ms, now, asker, tries_once, leaves)
  local heard, dies = publish(head), dies_at(head)
  local over_at = now + grace_ms + UNHEARD
  local graces = grace_ms > 0
  local is_first = graces and over_at < dies
  -- Whoever asks is awake, and comes back. Or each of them would notify all that are in front.
  if heard ~= 0 or grace_ms == 0 or asker and not is_first then
    return heard or 0, dies
  end
  local waiter, at, other = head, dies, nil
  for behind = 1, leaves and not is_first and FEW or MOST_PASSED do
    local is_ours = string.find(waiter, OURS)
    local next = redis.call('lindex', KEYS[2], behind)
    if not is_ours and behind > 1 then
      graces, other = false, other or waiter
    end
    if at % 1 == SILENT or not next and not (tries_once and is_ours) then
      -- The next one of Redisson's would take its own timeout from that of a place with a grace.
      if not (next or is_ours) and at % 1 == UNHEARD then
        set_timeout(waiter, now + REDISSON)
      end
      return other and publish(other) or 0, dies
    end
    if graces and over_at < at then
      set_timeout(waiter, over_at)
      dies = behind == 1 and over_at or dies
    end
    graces = graces and is_ours
    if not next or next == asker then
      return 0, dies
    end
    waiter, at = next, dies_at(next)
    heard = string.find(waiter, OURS) and publish(waiter) or 0
    if heard ~= 0 then
      return heard, dies
    end
  end
  -- If anybody lives, the latest does.
  local latest = redis.call('zrange', KEYS[3], -1, -1)[1]
  heard = latest and latest ~= asker and publish(latest) or 0
  if heard == 0 and other and latest ~= asker then
    heard = publish(other) or 0
  end
  return heard, dies
end

-- Notifies the first living waiter, if there is one, and returns how many heard it. Removes the dead in front.
local function notify_first(head, grace_ms, leaves)
  if not head then
    return 0
  end
  local now = now_ms()
  local function is_dead(waiter)
    local at = waiter and dies_at(waiter)
    return at and at <= now and not outlives_its_grace(waiter, at, now, grace_ms)
  end
  if is_dead(head) then
    local latest = redis.call('zrange', KEYS[3], -1, -1, 'withscores')
    local lives = tonumber(latest[2] or 0) > now
    -- Where several wait and none showed a sign of life, all may have been stopped: fair_acquire gives them time.
    local to_purge = (lives or redis.call('llen', KEYS[2]) == 1) and MOST or 0
    while to_purge > 0 and is_dead(head) do
      head = remove(head)
      to_purge = to_purge - 1
    end
    -- Whoever asks purges the others, and only who lives asks.
    if lives and is_dead(head) then
      return publish(latest[1]) or 0
    end
  end
  return head and (notify(head, grace_ms, now, nil, false, leaves)) or 0
end

