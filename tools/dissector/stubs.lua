-- Stubs of calls: what lies before the first pointer, conformant or variable part, queue formats, and the octets of
-- message packets. [C706] 14, [MS-RPCE] 2.2.4 and 2.2.5.
local FIXED_BYTES = {u8 = 1, u16 = 2, u32 = 4, u64 = 8, bool = 4, guid = 16, uow = 16, context = 20}
local ALIGNMENT = {u8 = 1, u16 = 2, u32 = 4, u64 = 8, bool = 4, guid = 4, uow = 1, context = 4}

-- A stub that is read: reader, and tree, in which values are shown; values are kept by name.
local Stub = {}
Stub.__index = Stub

function Stub.new(tvb, start, stop, tree, options)
  return setmetatable({reader = Reader.new(tvb, start, stop, options), tree = tree, values = {}, sections = {}}, Stub)
end

-- A GUID or context handle of a big-endian sender in the order of little-endian ones.
local function turned(raw, first)
  local order = {4, 3, 2, 1, 6, 5, 8, 7}
  local octets = {}
  for place = 1, #raw do
    local from = place
    if place <= first then
      from = first - place + 1
    elseif place <= first + 8 then
      from = first + order[place - first]
    end
    octets[place] = raw:sub(from, from)
  end
  return table.concat(octets)
end

-- Read a parameter of fixed size; show it if it has a field.
function Stub:fixed(param, field)
  local reader, kind = self.reader, param.type
  local size, align = FIXED_BYTES[kind], ALIGNMENT[kind]
  if kind == "enum" then
    size = reader.ndr64 and 4 or 2
    align = size
  end
  reader:align(align)
  local at = reader:advance(size, field or param.name)
  local range = reader.tvb(at, size)
  local value
  if kind == "guid" then
    value = guid(reader.tvb, at, reader.big)
  elseif kind == "context" then
    value = reader.big and turned(range:raw(), 4) or range:raw()
  elseif kind ~= "uow" then
    value = reader:peek(at, size)
  end
  self.values[param.name] = value
  if not param.abbr or range:raw() == string.rep("\0", 20):sub(1, size) and size >= 16 then
    return value  -- a NULL handle or identifier has no value in the tables either
  elseif kind == "bool" then
    self.tree:add(fields[param.abbr], range, value ~= 0)
  elseif reader.big and kind == "context" then
    self.tree:add(fields[param.abbr], range, value)
  elseif reader.big and kind ~= "uow" then
    self.tree:add(fields[param.abbr], range)
  else
    self.tree:add_le(fields[param.abbr], range)
  end
  if param.abbr == "msmq.action" or param.abbr == "msmq.ack" then
    local name = param.abbr:sub(6)
    show(self.tree, name .. "_name", code_name(name, value))
  end
  return value
end

-- A conformant varying string of wchar_t, without its NUL.
function Stub:text(field)
  local reader = self.reader
  local max_count, first, count = reader:word(field), reader:word(field), reader:word(field)
  if first ~= 0 or count == 0 or count > max_count then
    reader:fail("malformed", field .. ".actual_count")
  end
  local at = reader:advance(2 * count, field)
  if find_nul(reader.tvb(at, 2 * count):raw(), 1) ~= 2 * count - 1 then
    reader:fail("malformed", field, at)
  end
  return utf16(reader.tvb, at, 2 * count, reader.big)
end

-- A QUEUE_FORMAT, [MS-MQMQ] 2.2.7.
function Stub:queue_format(param)
  local reader = self.reader
  reader:align_struct()
  local from = reader.at
  local format = {tag = reader:number(1, param.name), suffix = reader:number(1, param.name), numbers = {}}
  reader:number(2, param.name)
  local arm = declared.queue_format_arms[format.tag]
  if not arm then
    reader:fail("malformed", param.name .. ".m_qft", from)
  end
  if reader.ndr64 then
    reader:align(8)
  end
  if reader:number(1, param.name) ~= format.tag then
    reader:fail("malformed", param.name .. ".tag")
  end
  show(self.tree, "queue_format_type", format.tag, reader.tvb(from, 1))
  if reader.ndr64 then
    reader:align(8)
  end
  for _, member in ipairs(arm.members) do
    local value = self:fixed(member, param.name .. "." .. member.name)
    if member.type == "guid" then
      format.guid = value or "00000000-0000-0000-0000-000000000000"
    else
      table.insert(format.numbers, value)
    end
  end
  if arm.text then
    if reader:word(param.name) ~= 0 then
      format.text = self:text(param.name)
    end
  else
    reader:align_struct()
  end
  local range = reader.tvb(from, reader.at - from)
  local name = format_name(format)
  show(self.tree, "queue_format_name", name, range)
  if param.is_queue and name then
    self.queue = normal_queue_name(name)
    show(self.tree, "queue", self.queue, range)
  end
end

-- REMOTEREADDESC, [MS-MQQP] 2.2.2.1: its buffer is a message packet.
function Stub:read_desc(param)
  local reader = self.reader
  reader:align_struct()
  for _, member in ipairs(declared.read_desc_members) do
    self:fixed(member, param.name .. "." .. member.name)
  end
  if reader:word(param.name .. ".lpBuffer") == 0 then
    return
  end
  reader:word(param.name .. ".lpBuffer")
  reader:word(param.name .. ".lpBuffer")
  local count = reader:word(param.name .. ".lpBuffer")
  table.insert(self.sections, {at = reader:advance(count, param.name .. ".lpBuffer"), size = count})
end

-- REMOTEREADDESC2, [MS-MQQP] 2.2.2.2: a pointer to the descriptor, and the sequential id.
function Stub:read_desc2(param)
  local reader = self.reader
  reader:align(8)
  local referent = reader:word(param.name .. ".pRemoteReadDesc")
  self:fixed({name = "SequentialId", type = "u64", abbr = "msmq.sequence_id"})
  if referent ~= 0 then
    self:read_desc(param)
  end
end

local MOST_SECTIONS = 100  -- of an answer that are shown; packets have one or two

-- SectionBuffers, [MS-MQRR] 2.2.6: one pointer to one conformant array, and the octets of each section behind it.
function Stub:packet_sections(param)
  local reader, count = self.reader, self.values[param.size_is]
  if reader:word(param.name) == 0 then
    return
  end
  local stride = reader.ndr64 and 24 or 16
  if reader:word(param.name .. ".max_count") ~= count then
    reader:fail("malformed", param.name .. ".max_count")
  end
  if count * stride > reader:left() then
    reader:fail("truncated", param.name .. ".SectionBufferType")
  end
  local heads = {}
  for place = 1, count do
    local from = reader.at
    heads[place] = {
      kind = reader:number(reader.ndr64 and 4 or 2, param.name), allocated = reader:number(4, param.name),
      size = reader:number(4, param.name), is_there = reader:word(param.name) ~= 0, from = from,
    }
    if place <= MOST_SECTIONS then
      local range = reader.tvb(from, reader.at - from)
      show(self.tree, "section_types", heads[place].kind, range)
      show(self.tree, "section_allocated_bytes", heads[place].allocated, range)
      show(self.tree, "section_bytes", heads[place].size, range)
    end
  end
  for _, head in ipairs(heads) do
    head.kept = 0
    if head.is_there then
      reader:align_struct()
      local max_count = reader:word(param.name .. ".pSectionBuffer")
      head.at = reader:advance(max_count, param.name .. ".pSectionBuffer")
      head.kept = math.min(max_count, head.size)
      table.insert(self.sections, {at = head.at, size = head.kept})
    end
  end
  self.heads = heads
end

-- MGMT_OBJECT, [MS-MQMR] 2.2.1.2: its type, and the queue format of a queue.
function Stub:managed_object(param)
  local reader, size = self.reader, self.reader.ndr64 and 4 or 2
  reader:align_struct()
  local kind = reader:number(size, param.name .. ".type")
  if reader.ndr64 then
    reader:align(8)
  end
  if reader:number(size, param.name .. ".tag") ~= kind then
    reader:fail("malformed", param.name .. ".tag")
  end
  show(self.tree, "object_type", declared.object_types[kind])
  reader:align_struct()
  if kind ~= 2 then
    reader:number(4, param.name .. ".Reserved")
    if reader.ndr64 then
      reader:align(8)
    end
  elseif reader:word(param.name .. ".pQueueFormat") ~= 0 then
    self:queue_format(param)
  end
end

local READERS = {
  managed_object = Stub.managed_object,
  octets = function(stub, param)
    stub.reader:align_struct()
    stub.reader:advance(stub.reader:word(param.name .. ".max_count"), param.name)
  end,
  action = function(stub, param)
    stub.reader:align_struct()
    local from = stub.reader.at
    local text = stub:text(param.name)
    show(stub.tree, "management_action", text, stub.reader.tvb(from, stub.reader.at - from))
  end,
  queue_format = Stub.queue_format, read_desc = Stub.read_desc, read_desc2 = Stub.read_desc2,
  sections = Stub.packet_sections,
  queue_format_pointer = function(stub, param)
    if stub.reader:word(param.name) ~= 0 then
      stub:queue_format(param)
    end
  end,
}

-- Read parameters in order, up to the first that is not read. What a method returns is the last value of its stub.
function Stub:parameters(params)
  local last = params[#params]
  for _, param in ipairs(params) do
    local special = READERS[param.type]
    if special then
      special(self, param)
    elseif FIXED_BYTES[param.type] or param.type == "enum" then
      self:fixed(param)
    elseif last.name == "return" and self.reader.stop - self.reader.start >= 4 then
      self.reader.at = self.reader.stop - 4
      self:fixed(last)
      return
    else
      return
    end
  end
end

-- Whether the sections that came are those of a packet: one, or the first of two, or both of a kind.
local function are_of_a_packet(heads)
  local first, second = heads[1].kind, heads[2] and heads[2].kind
  if #heads == 1 and first == constants.SECTION_FULL_PACKET then
    return true
  end
  local is_split = first == constants.SECTION_BINARY_FIRST or first == constants.SECTION_SRMP_FIRST
  return is_split and #heads <= 2 and (second == nil or second == first + 1)
end

-- The octets of the message packet as a Tvb with its bounds, and its sections as Chain needs them; nil without one.
function Stub:packet()
  local total, parts = 0, {}
  for _, section in ipairs(self.sections) do
    total = total + section.size
    table.insert(parts, section.size > 0 and self.reader.tvb(section.at, section.size):raw() or "")
  end
  if self.heads and self.heads[1] and not are_of_a_packet(self.heads) then
    show_error(self.tree, {code = "malformed", field = "SectionBufferType", soft = true})
    return nil
  elseif total == 0 then
    return nil
  end
  local sections
  local first = self.heads and self.heads[1]
  if first and (first.kind == constants.SECTION_BINARY_FIRST or first.kind == constants.SECTION_SRMP_FIRST) then
    sections = {size = math.min(first.size, total), missing = math.max(first.allocated - first.size, 0),
      srmp = first.kind == constants.SECTION_SRMP_FIRST}
  end
  if #self.sections == 1 then
    local only = self.sections[1]
    if sections then
      sections.first_end = only.at + sections.size
    end
    return self.reader.tvb, only.at, only.at + only.size, sections
  end
  local joined = ByteArray.new(table.concat(parts), true):tvb("Message packet")
  if sections then
    sections.first_end = sections.size
  end
  return joined, 0, total, sections
end
