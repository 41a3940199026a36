-- Names: queues in their normal form, as the tables have them; security identifiers.
local GUID_PATTERN = "{?(%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x)}?"

local function normal_direct_name(name)
  local protocol, rest = name:match("^(%l+):(.*)$")
  if not protocol then
    return name
  end
  if protocol == "http" or protocol == "https" then
    return "direct=" .. name
  end
  return rest
end

local function normal_element(text)
  local owner, number, suffix = text:gsub("^private=", ""):match("^" .. GUID_PATTERN .. "\\(%x+)(.*)$")
  if owner and #number <= 8 and (suffix == "" or suffix:sub(1, 1) == ";") then
    return string.format("%s\\%08x%s", owner, tonumber(number, 16), suffix)
  end
  for _, kind in ipairs({"public", "machine", "connector", "dl"}) do
    local id, rest = text:match("^" .. kind .. "=" .. GUID_PATTERN .. "(.*)$")
    if id then
      return kind .. "=" .. id .. rest
    end
  end
  if text:sub(1, 7) == "direct=" then
    return normal_direct_name(text:sub(8))
  end
  for _, begin in ipairs({"^os:", "^tcp:", "^ipx:", "^spx:", "^https?://"}) do
    if text:match(begin) then
      return normal_direct_name(text)
    end
  end
  return (text:gsub("^private=", ""))
end

-- The normal form of a queue name or of a list of elements; nil for no name.
local function normal_queue_name(name)
  if not name or name == "" then
    return nil
  end
  local elements, text = {}, name:lower()
  for _, kind in ipairs({"direct", "public", "private", "machine", "connector", "dl", "multicast"}) do
    text = text:gsub("," .. kind .. "=", "\0%0")
  end
  for part in (text .. "\0,"):gmatch("(.-)\0,") do
    table.insert(elements, normal_element(part))
  end
  return table.concat(elements, ",")
end

-- The normal form of a direct name, with or without "DIRECT=".
local function direct_queue_name(text)
  if not text or text == "" then
    return nil
  end
  if text:sub(1, 7):upper() == "DIRECT=" then
    text = text:sub(8)
  end
  return normal_queue_name("direct=" .. text)
end

-- Multicast addresses are in network order, or byte-swapped where only that is one.
local function multicast_name(number, port)
  local octets = {bits(number, 0, 8), bits(number, 8, 8), bits(number, 16, 8), bits(number, 24, 8)}
  if not (octets[1] >= 224 and octets[1] <= 239) and octets[4] >= 224 and octets[4] <= 239 then
    octets = {octets[4], octets[3], octets[2], octets[1]}
  end
  return string.format("MULTICAST=%.0f.%.0f.%.0f.%.0f:%.0f", octets[1], octets[2], octets[3], octets[4], port)
end

-- The format name of a QUEUE_FORMAT; nil where it names no queue.
local function format_name(format)
  local suffix = declared.queue_suffixes[bits(format.suffix, 0, 4)] or ""
  if format.tag == 3 or format.tag == 8 then
    if not format.text then
      return nil
    end
    if suffix ~= "" and format.text:sub(-#suffix):upper() == suffix then
      suffix = ""
    end
    return "DIRECT=" .. format.text .. suffix
  end
  if format.tag == 7 then
    return multicast_name(format.numbers[1], format.numbers[2]) .. suffix
  end
  local kind = declared.queue_kinds[format.tag]
  if not kind or not format.guid then
    return nil
  end
  local rest = ""
  if kind == "PRIVATE" then
    rest = string.format("\\%08x", format.numbers[1])
  elseif kind == "DL" and format.text then
    rest = "@" .. format.text
  end
  return kind .. "=" .. format.guid .. rest .. suffix
end

-- A security identifier as text; nil if the octets are none.
local function sid_text(raw)
  if #raw < 8 or raw:byte(1) ~= 1 or raw:byte(2) > 15 or #raw ~= 8 + 4 * raw:byte(2) then
    return nil
  end
  local authority = 0
  for place = 3, 8 do
    authority = authority * 256 + raw:byte(place)
  end
  local parts = {"S-1", authority < 2 ^ 32 and digits(authority) or string.format("0x%012x", authority)}
  for place = 9, #raw, 4 do
    local one, two, three, four = raw:byte(place, place + 3)
    table.insert(parts, digits(((four * 256 + three) * 256 + two) * 256 + one))
  end
  return table.concat(parts, "-")
end

-- An IPv6 address in its shortest form: "::" stands for the longest run of two or more zeros.
local function ipv6_text(raw)
  local words, best, length = {}, nil, 1
  for place = 1, 8 do
    words[place] = raw:byte(2 * place - 1) * 256 + raw:byte(2 * place)
  end
  for place = 1, 8 do
    local last = place
    while words[last] == 0 do
      last = last + 1
    end
    if last - place > length then
      best, length = place, last - place
    end
  end
  local text = {}
  for place, word in ipairs(words) do
    if not best or place < best or place >= best + length then
      table.insert(text, string.format("%x", word))
    elseif place == best then
      table.insert(text, "")
    end
  end
  local joined = table.concat(text, ":")
  return (best == 1 and ":" or "") .. joined .. (best and best + length == 9 and ":" or "")
end

-- An address of [MS-MQRR] 2.2.5.5 as text; nil for other types.
local function ip_text(kind, raw)
  if kind == constants.ADDRESS_TYPE_IPV4 then
    return string.format("%d.%d.%d.%d", raw:byte(1, 4))
  end
  return kind == constants.ADDRESS_TYPE_IPV6 and ipv6_text(raw) or nil
end
