-- Reading: bits, numbers, a place in the octets of a Tvb, texts. Lua 5.2 and 5.4: no bit32, no //, no &.
local constants = declared.constants

-- Whether the bits of a mask of one bit are set in a number.
local function has(number, mask)
  return math.floor(number / mask) % 2 == 1
end

-- The number in the bits of a number from shift on, as many as width.
local function bits(number, shift, width)
  return math.floor(number / 2 ^ shift) % 2 ^ width
end

-- A text for a number without a fraction, which is a float in Lua 5.4 after a division.
local function digits(number)
  return string.format("%.0f", number)
end

local function code_name(names, code, width)
  return declared.names[names][code] or string.format("0x%0" .. (width or 8) .. "X", code)
end

-- A place in octets [start, stop) of a Tvb. Reading beyond stop raises a table that says where: see attempt.
local Reader = {}
Reader.__index = Reader

function Reader.new(tvb, start, stop, options)
  local reader = {tvb = tvb, start = start, at = start, stop = stop}
  for name, value in pairs(options or {}) do
    reader[name] = value
  end
  return setmetatable(reader, Reader)
end

function Reader:fail(code, field, at)
  error({code = code, field = field, at = at or self.at}, 0)
end

function Reader:left()
  return self.stop - self.at
end

-- Skip octets; return where they begin.
function Reader:advance(size, field)
  if size < 0 or size > self:left() then
    self:fail("truncated", field)
  end
  local at = self.at
  self.at = at + size
  return at
end

function Reader:align(to, base)
  self.at = self.at + ((base or self.start) - self.at) % to
end

-- Align to 4 octets, at most to the end: the last padding may be missing.
function Reader:align_to_4(base)
  self.at = math.max(self.at, math.min(self.at + (base - self.at) % 4, self.stop))
end

-- The number at a place, without moving. 8 octets are a number only up to 2^53: a larger one is not a size.
function Reader:peek(at, size)
  local range = self.tvb(at, size)
  if size == 8 then
    local low, high = self.tvb(at, 4), self.tvb(at + 4, 4)
    if self.big then
      return low:uint() * 2 ^ 32 + high:uint()
    end
    return high:le_uint() * 2 ^ 32 + low:le_uint()
  end
  return self.big and range:uint() or range:le_uint()
end

-- An aligned number of NDR.
function Reader:number(size, field)
  self:align(size)
  return self:peek(self:advance(size, field), size)
end

-- A referent or a count of NDR: 4 octets, in NDR64 8.
function Reader:word(field)
  return self:number(self.ndr64 and 8 or 4, field)
end

function Reader:align_struct()
  self:align(self.ndr64 and 8 or 4)
end

-- Run a function; return what a Reader raised, or nil. Any other error is one of this file, and goes on.
local function attempt(run, ...)
  local done, raised = pcall(run, ...)
  if done then
    return nil
  end
  if type(raised) ~= "table" then
    error(raised, 0)
  end
  return raised
end

-- UTF-16 up to its first NUL; nil for no text.
local function utf16(tvb, at, size, big)
  size = size - size % 2
  if size <= 0 then
    return nil
  end
  local text = big and tvb(at, size):ustring() or tvb(at, size):le_ustring()
  return text:match("^[^\0]*")
end

-- A text from the wire for a line: characters that control a terminal, or the direction of writing, as hex of their octets.
local function printable(text)
  local function hex(octets)
    return (octets:gsub(".", function(octet)
      return string.format("\\x%02x", octet:byte())
    end))
  end
  text = text:gsub("[%c\127]", hex):gsub("\194[\128-\159]", hex):gsub("\239\191[\190\191]", hex)
  return (text:gsub("\226\128[\142\143\168-\174]", hex):gsub("\226\129[\166-\169]", hex))
end

-- A GUID as text, at a place; little-endian unless big. nil where it is zero, unless zero is set.
local function guid(tvb, at, big, zero)
  local raw = tvb(at, 16):raw()
  if not zero and raw == string.rep("\0", 16) then
    return nil
  end
  local order = big and {1, 2, 3, 4, 5, 6, 7, 8} or {4, 3, 2, 1, 6, 5, 8, 7}
  local hex = {}
  for place = 1, 16 do
    hex[place] = string.format("%02x", raw:byte(order[place] or place))
  end
  local text = table.concat(hex)
  return table.concat({text:sub(1, 8), text:sub(9, 12), text:sub(13, 16), text:sub(17, 20), text:sub(21)}, "-")
end
