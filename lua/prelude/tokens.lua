-- tokens: draws fencing tokens. In front of each script that takes a lock with tokens.
--
-- KEYS[2]  counter  string: the last token drawn

-- Returns the error for a counter that is not an integer, or nil and the first and the last of up to `count` tokens. Tokens
-- only increase. A token is at least the server's time in microseconds. Unless the clock is set back, the last token is
-- ahead of that clock by fewer than N microseconds, where N is the largest `count` that any client passes. (A counter of 2^53
-- or more is the exception: see below.) The counter lives for `token_ttl_ms` after its last use, or longer (see below); forever
-- if `token_ttl_ms` is 0.
local function draw(count, token_ttl_ms)
  local token = redis.call('get', KEYS[2]) or '0'
  if token ~= '0' and not string.find(token, '^%-?[1-9]%d*$') then
    return redis.error_reply('WRONGTYPE the token counter is not an integer')
  end
  local first
  local last = tonumber(token)
  if last + count < 2 ^ 53 then
    -- Tokens are not below the clock, so they increase even if the counter expired. If it was evicted, or came back from an
    -- old copy, they increase once the clock has passed the tokens drawn before. So their lead over the clock is kept short.
    local time = redis.call('time')
    local now = time[1] * 1000000 + time[2]
    first = math.max(last + 1, now)
    last = math.max(first, now + count - 1)
    first, token = string.format('%.0f', first), string.format('%.0f', last)
    if token_ttl_ms > 0 then
      -- The counter must outlive its lead over the clock. Redis counts a TTL from the start of the current
      -- millisecond, so the key may expire up to 1 ms early: hence `+ 1`.
      local keep_ms = math.max(token_ttl_ms, math.ceil((last - now) / 1000) + 1)
      redis.call('set', KEYS[2], token, 'px', string.format('%.0f', keep_ms))
    else
      redis.call('set', KEYS[2], token)
    end
  else
    -- Lua would round a number this large, so Redis adds. A counter that expired would start again at the clock, which is far
    -- below, so this one never expires.
    redis.call('incrby', KEYS[2], 1)
    redis.call('persist', KEYS[2])
    token = redis.call('get', KEYS[2])
    first = token
  end
  return nil, first, token
end

