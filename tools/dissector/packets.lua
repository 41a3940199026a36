-- The chain of headers of a message packet, [MS-MQMQ] 2.2.20, [MS-MQRR] 2.2.5: where each header and each item is.
-- Nothing is shown here, because a body may have two sizes: then the chain is walked once more.
local Chain = {}
Chain.__index = Chain

-- sections: {first_end =, missing =, srmp =} of a packet that came in two sections, or as the first of two.
function Chain.new(tvb, start, stop, protocol, sections, other_span)
  return setmetatable({
    tvb = tvb, start = start, stop = stop, protocol = protocol, sections = sections, other_span = other_span,
    over_rpc = protocol ~= constants.PROTOCOL_BINARY, remote_read = protocol == constants.PROTOCOL_REMOTE_READ,
    parts = {}, notes = {}, whole = {},
    reader = Reader.new(tvb, start, sections and sections.first_end or stop),
  }, Chain)
end

-- The number of a field of a declared header at a place.
function Chain:field(header, at, name)
  for _, field in ipairs(declared.headers[header].fields) do
    if field.name == name then
      return self.tvb(at + field.at, field.size):le_uint()
    end
  end
end

-- Begin a header: its fixed part is read; layout is its declaration if that has another name.
function Chain:begin(name, layout)
  local reader = self.reader
  local part = {name = name, layout = layout or name, at = reader.at, items = {}}
  self.last = part
  if reader:left() > 0 then
    table.insert(self.parts, part)
  end
  reader:advance(declared.headers[part.layout].size, name)
  part.read = true
  return part, part.at
end

function Chain:item(name, at, size, value)
  if size > 0 or value ~= nil then
    table.insert(self.last.items, {name = name, at = at, size = size, value = value})
  end
end

-- An error that ends nothing.
function Chain:note(field, at)
  table.insert(self.notes, {code = "malformed", field = field, at = at})
end

function Chain:base_header()
  local part, at = self:begin("BaseHeader")
  local flags = self:field("BaseHeader", at, "Flags")
  if self:field("BaseHeader", at, "VersionNumber") ~= constants.PACKET_VERSION then
    self.reader:fail("malformed", "BaseHeader.VersionNumber", at)
  end
  if self:field("BaseHeader", at, "Signature") ~= constants.PACKET_SIGNATURE then
    self.reader:fail("malformed", "BaseHeader.Signature", at + 4)
  end
  if has(flags, constants.BASE_FLAG_IN) then
    self.reader:fail("unsupported", "BaseHeader.Flags.IN", at + 2)
  end
  if not self.over_rpc then
    local size = self:field("BaseHeader", at, "PacketSize")
    size = size + (has(flags, constants.BASE_FLAG_SH) and declared.headers.SessionHeader.size or 0)
    self.reader.stop = math.min(self.reader.stop, at + size)
  end
  self.base_flags = flags
end

function Chain:user_header()
  local part, at = self:begin("UserHeader")
  local flags = self:field("UserHeader", at, "Flags")
  self.flags, self.user_at = flags, at
  self.queues = {}
  for _, name in ipairs(declared.queue_names) do
    local kind = bits(flags, name.shift, 3)
    if not name.allowed[kind] then
      self.reader:fail("malformed", "UserHeader.Flags." .. name.flag, at + 44)
    end
    local size = declared.queue_name_bytes[kind]
    local kept = size
    local direct = kind == constants.DIRECT_NAME_TYPE
    if direct and self.reader:left() >= 2 then
      kept = self.tvb(self.reader.at, 2):le_uint()
      size = 2 + kept + 3
      size = size - size % 4
    end
    local place = self.reader:advance(size, "UserHeader." .. name.name)
    self.queues[name.name] = {kind = kind, at = place + (direct and 2 or 0), size = kept, span = {place, size}}
  end
  if has(flags, constants.USER_FLAG_CQ) then
    local place = self.reader:advance(16, "UserHeader.ConnectorType")
    self:item("connector_type", place, 16, guid(self.tvb, place, false, true))
  end
  self.whole.user = true
end

function Chain:transaction_header()
  local part, at = self:begin("TransactionHeader")
  if has(self:field("TransactionHeader", at, "Flags"), constants.TRANSACTION_FLAG_CG) then
    local place = self.reader:advance(16, "TransactionHeader.ConnectorQMGuid")
    self:item("connector_queue_manager", place, 16, guid(self.tvb, place, false, true))
  end
  self.transaction_at = at
end

function Chain:security_header()
  local part, at = self:begin("SecurityHeader")
  local flags = self:field("SecurityHeader", at, "Flags")
  for _, item in ipairs(declared.security_items) do
    local size = self:field("SecurityHeader", at, item[2])
    local place = self.reader:advance(size + (-size) % 4, "SecurityHeader." .. item[1])
    if item[1] == "SecurityID" and size > 0 then
      self:sender_id(place, size, bits(flags, 0, 4))
    elseif size > 0 then
      table.insert(part.items, {text = item[1], at = place, size = size})
    end
  end
  self.encrypted = has(flags, constants.SECURITY_FLAG_EB)
end

function Chain:sender_id(at, size, kind)
  local text
  if kind == constants.SENDER_TYPE_SID then
    text = sid_text(self.tvb(at, size):raw())
  elseif kind == constants.SENDER_TYPE_QUEUE_MANAGER then
    text = size == 16 and guid(self.tvb, at, false, true) or nil
  else
    return
  end
  if text then
    self:item("sender_id", at, size, text)
  else
    self:note("SecurityHeader.SecurityID", at)
  end
end

-- Returns the base of the alignment of what follows.
function Chain:properties_header()
  local part, at = self:begin("MessagePropertiesHeader")
  local reader, header = self.reader, "MessagePropertiesHeader"
  local size, allocated = self:field(header, at, "MessageSize"), self:field(header, at, "AllocationBodySize")
  local span = size
  self.two_spans = allocated > size
  if (self.encrypted or false) ~= self.other_span then
    span = math.max(size, allocated)
  end
  local label, extension = 2 * self:field(header, at, "LabelLength"), self:field(header, at, "ExtensionSize")
  self.properties_at = at
  local over_http = self.over_rpc and has(self.flags, constants.USER_FLAG_AH)
  self.body = over_http and {} or {size = size}  -- over HTTP it is in the compound message
  local place = reader:advance(label, "MessagePropertiesHeader.Label")
  self.label = {at = place, size = label, text = utf16(self.tvb, place, label)}
  self.extension = {at = reader:advance(extension, "MessagePropertiesHeader.ExtensionData"), size = extension}
  self.whole.properties = true
  local left = math.max(reader:left(), 0)
  if not over_http then
    self.body = {at = reader.at, size = size, seen = math.min(size, left)}
  end
  local cut = self.sections and not self.sections.srmp
  if not cut then
    reader:advance(span, "MessagePropertiesHeader.MessageBody")
    reader:align_to_4(self.start)
    return self.start
  end
  if span > left + self.sections.missing then
    reader:fail("truncated", "MessagePropertiesHeader.MessageBody")
  end
  return self:second_section(left)
end

-- Go on with the second section, behind what the reader's limit left of the first one.
function Chain:second_section(left)
  self.reader:advance(left, "")
  self.reader.stop = self.stop
  self.reader:align_to_4(self.sections.first_end)
  return self.sections.first_end
end

function Chain:debug_header()
  local part, at = self:begin("DebugHeader")
  if bits(self:field("DebugHeader", at, "Flags"), 0, 2) == constants.DEBUG_PUBLIC_QUEUE then
    local place = self.reader:advance(16, "DebugHeader.QueueIdentifier")
    self:item("report_queue", place, 16, "public=" .. guid(self.tvb, place, false, true))
  end
end

-- Whether a plausible CompoundMessageHeader is at the next multiple of 4.
function Chain:has_compound_header(at, base, missing)
  at = at + (base - at) % 4
  local size = declared.headers.CompoundMessageHeader.size
  if at + size > self.reader.stop then
    return false
  end
  local http = self:field("CompoundMessageHeader", at, "HTTPBodySize")
  local body = self:field("CompoundMessageHeader", at, "MsgBodyOffset")
    + self:field("CompoundMessageHeader", at, "MsgBodySize")
  return body <= http and http <= self.reader.stop - at - size + missing
end

-- The unit of DataLength is in doubt: characters, unless only octets lead to a plausible CompoundMessageHeader.
function Chain:srmp_headers(base)
  local reader, sections = self.reader, self.sections
  local missing = sections and sections.srmp and sections.missing or 0
  local part, at = self:begin("SRMPEnvelopeHeader")
  local length = self:field("SRMPEnvelopeHeader", at, "DataLength")
  local fits = {}
  for place, size in ipairs({2 * length, length}) do
    local after = reader.at + size
    fits[place] = size >= 2 and after <= reader.stop and self.tvb(after - 2, 2):le_uint() == 0
      and self:has_compound_header(after, base, missing)
  end
  local size = fits[2] and not fits[1] and length or 2 * length
  table.insert(part.items, {text = "Data", at = reader:advance(size, "SRMPEnvelopeHeader.Data"), size = size})
  reader:align_to_4(base)
  part, at = self:begin("CompoundMessageHeader")
  local http = self:field("CompoundMessageHeader", at, "HTTPBodySize")
  local body, offset = self:field("CompoundMessageHeader", at, "MsgBodySize"), self:field("CompoundMessageHeader", at, "MsgBodyOffset")
  local left = math.max(reader:left(), 0)
  if offset + body > http then
    self:note("CompoundMessageHeader.MsgBodySize", at + 8)
  end
  local seen = math.max(0, math.min(math.min(left, http) - offset, body))
  self.body = {at = math.min(reader.at + offset, math.max(reader.stop, reader.at)), size = body, seen = seen}
  if http > left + missing then
    reader:fail("truncated", "CompoundMessageHeader.Data")
  end
  if sections and sections.srmp then
    return self:second_section(left)
  end
  reader:advance(http, "CompoundMessageHeader.Data")
  reader:align_to_4(base)
  return base
end

function Chain:soap_header(base)
  local reader = self.reader
  local part, at = self:begin("SoapHeader")
  if self:field("SoapHeader", at, "SectionID") ~= constants.SOAP_HEADER_ID then
    reader:fail("malformed", "SoapHeader.HeaderSectionID", at)
  end
  local size = 2 * self:field("SoapHeader", at, "DataLength")
  local place = reader:advance(size, "SoapHeader.Header")
  self:item("soap_header", place, size, utf16(self.tvb, place, size))
  local aligned = reader.at + (base - reader.at) % 4
  if aligned + 2 <= reader.stop and self.tvb(aligned, 2):le_uint() == constants.SOAP_BODY_ID then
    reader.at = aligned
  end
  at = reader:advance(declared.headers.SoapHeader.size, "SoapHeader.BodySectionID")
  if self:field("SoapHeader", at, "SectionID") ~= constants.SOAP_BODY_ID then
    reader:fail("malformed", "SoapHeader.BodySectionID", at)
  end
  size = 2 * self:field("SoapHeader", at, "DataLength")
  place = reader:advance(size, "SoapHeader.Body")
  self:item("soap_body_bytes", place, size, size)
  reader:align_to_4(base)
end

local LIST_COLUMNS = {Destination = "destination_list", Administration = "admin_list", Response = "response_list"}
local MOST_NAMES = 1000  -- of a list that are shown
local ELEMENT_BYTES = {
  [constants.FORMAT_NAME_PUBLIC] = 16, [constants.FORMAT_NAME_PRIVATE] = 20,
  [constants.FORMAT_NAME_DISTRIBUTION_LIST] = 16,
}

-- Where the NUL that ends a text in UTF-16 is, from a place in octets on; nil without one.
local function find_nul(raw, from)
  local found = raw:find("\0\0", from, true)
  while found and (found - from) % 2 == 1 do
    found = raw:find("\0\0", found + 1, true)
  end
  return found
end

-- The normal forms of a list's elements with their places and sizes, or nil if they do not end with it.
function Chain:format_names(at, size, count, alignment)
  local names, raw, place = {}, size > 0 and self.tvb(at, size):raw() or "", 1  -- a place in Lua's strings, from 1
  for _ = 1, count do
    if place + 1 > size then
      return nil
    end
    local kind, name = raw:byte(place) + 256 * raw:byte(place + 1), nil
    place = place + 2
    local bytes = ELEMENT_BYTES[kind]
    if kind == constants.FORMAT_NAME_DIRECT then
      local last = find_nul(raw, place)
      if not last then
        return nil
      end
      bytes = last - place
      name = direct_queue_name(utf16(self.tvb, at + place - 1, bytes))
    elseif bytes then
      place = place + (1 - place) % alignment
      if place + bytes - 1 > size then
        return nil
      end
      name = self:guid_element(kind, at + place - 1)
    else
      return nil
    end
    if #names < MOST_NAMES then
      table.insert(names, {at + place - 1, bytes, name})
    end
    place = place + bytes + (kind == constants.FORMAT_NAME_DIRECT and 2 or 0)
  end
  return size - place + 1 <= constants.FORMAT_NAME_ALIGNMENT - 1 and names or nil
end

-- The normal form of an element that names its queues by a GUID.
function Chain:guid_element(kind, at)
  if kind == constants.FORMAT_NAME_DISTRIBUTION_LIST then
    return "dl=" .. guid(self.tvb, at, false, true)
  end
  local owner = guid(self.tvb, at)
  if owner and kind == constants.FORMAT_NAME_PUBLIC then
    return "public=" .. owner
  end
  return owner and string.format("%s\\%08x", owner, self.tvb(at + 16, 4):le_uint())
end

function Chain:multi_queue_header(base)
  local reader = self.reader
  for number, list in ipairs(declared.format_name_lists) do
    local field = "MultiQueueFormatHeader." .. list[1]
    local at = reader.at
    self:begin(number == 1 and "MultiQueueFormatHeader" or field, "FormatNameList")
    local size = self:field("FormatNameList", at, "HeaderSize") - declared.headers.FormatNameList.size
    if size < 0 then
      reader:fail("malformed", field .. ".HeaderSize", at)
    end
    if self:field("FormatNameList", at, "HeaderID") ~= list[2] then
      reader:fail("malformed", field .. ".HeaderID", at + 4)
    end
    local count = self:field("FormatNameList", at, "ElementCount")
    if count > size / constants.MIN_FORMAT_NAME_BYTES then
      self:note(field .. ".ElementCount", at + 8)
    end
    local place = reader:advance(size, field .. ".FormatNameList")
    local names = self:format_names(place, size, count, constants.FORMAT_NAME_ALIGNMENT)
      or self:format_names(place, size, count, 1)
    if not names then
      self:note(field .. ".FormatNameList", place)
    end
    for _, name in ipairs(names or {}) do
      self:item(LIST_COLUMNS[list[1]], name[1], name[2], name[3] or "")
    end
    reader:align_to_4(base)
  end
  local at = reader.at
  self:begin("MultiQueueFormatHeader.Signature", "MultiQueueSignature")
  if self:field("MultiQueueSignature", at, "ID") ~= constants.MULTI_QUEUE_SIGNATURE_ID then
    reader:fail("malformed", "MultiQueueFormatHeader.Signature.ID", at)
  end
  reader:advance(self:field("MultiQueueSignature", at, "Size"), "MultiQueueFormatHeader.Signature")
  reader:align_to_4(base)
end

-- PacketSize does not count a SessionHeader: a packet that RPC carries may have the flag but no such header.
function Chain:session_header()
  local reader = self.reader
  if not has(self.base_flags, constants.BASE_FLAG_SH) then
    return
  end
  local left, trailing = reader:left(), false
  if self.remote_read and left >= 8 then
    local size = declared.headers.ExtensionHeader.size
    trailing = self.tvb(reader.at, 4):le_uint() == size and self.tvb(reader.at + 4, 4):le_uint() == left - size
  end
  if not trailing and (left > 0 or not self.over_rpc) then
    local part, at = self:begin("SessionHeader")
    self.session_at = at
  end
end

-- What RemoteRead appends to a message, [MS-MQRR] 2.2.5.2 to 2.2.5.5.
function Chain:trailing_headers()
  local reader = self.reader
  local part, at = self:begin("ExtensionHeader")
  local size = declared.headers.ExtensionHeader.size
  local remaining = reader.at + self:field("ExtensionHeader", at, "RemainingHeadersSize")
  if self:field("ExtensionHeader", at, "HeaderSize") ~= size then
    if remaining ~= reader.stop then
      reader:fail("malformed", "ExtensionHeader.HeaderSize", at)
    end
    self:note("ExtensionHeader.HeaderSize", at)
  end
  local flags = self:field("ExtensionHeader", at, "Flags")
  if has(flags, constants.EXTENSION_FLAG_SQ) then
    self:subqueue_header()
  end
  if has(flags, constants.EXTENSION_FLAG_DL) then
    self:dead_letter_header()
  end
  if has(flags, constants.EXTENSION_FLAG_EA) then
    self:extended_address_header()
  end
  if remaining > reader.stop then
    reader:fail("truncated", "ExtensionHeader.RemainingHeadersSize", at + 4)
  end
  if remaining ~= reader.at then
    self:note("ExtensionHeader.RemainingHeadersSize", at + 4)
  end
end

function Chain:subqueue_header()
  local part, at = self:begin("SubqueueHeader")
  local width = constants.SUBQUEUE_NAME_BYTES
  local place = self.reader:advance(2 * width, "SubqueueHeader.SubqueueName")
  -- Where the 16 bits of the class begin is in doubt: at bit 1, unless those from bit 16 are such a class.
  local word = self:field("SubqueueHeader", at, "Bits")
  local class = bits(word, 16, 16)
  if not declared.acknowledgement_classes[class] then
    class = bits(word, 1, 16)
  end
  self:item("subqueue_acknowledgement_class", at + 4, 4, class)
  for number, name in ipairs({"subqueue", "target_subqueue"}) do
    local from = place + (number - 1) * width
    local text = utf16(self.tvb, from, width)
    if text ~= "" then
      self:item(name, from, width, text)
    end
  end
  if self:field("SubqueueHeader", at, "HeaderSize") ~= declared.headers.SubqueueHeader.size + 2 * width then
    self:note("SubqueueHeader.HeaderSize", at)
  end
end

function Chain:dead_letter_header()
  local part, at = self:begin("DeadLetterHeader")
  local size = self:field("DeadLetterHeader", at, "HeaderSize") - declared.headers.DeadLetterHeader.size
  if size < 0 then
    self.reader:fail("malformed", "DeadLetterHeader.HeaderSize", at)
  end
  local place = self.reader:advance(size, "DeadLetterHeader.DeadLetterPathName")
  local name = normal_queue_name(utf16(self.tvb, place, size))
  if name then
    self:item("dead_letter_queue", place, size, name)
  end
end

function Chain:extended_address_header()
  local part, at = self:begin("ExtendedAddressHeader")
  local size = declared.headers.ExtendedAddressHeader.size
  local kind = self:field("ExtendedAddressHeader", at, "AddressType")
  local text = ip_text(kind, self.tvb(at + 12, 16):raw())
  if text then
    self:item("sender_address", at + 12, 16, text)
  end
  self.has_address = kind ~= 0
  if self:field("ExtendedAddressHeader", at, "HeaderSize") ~= size then
    self:note("ExtendedAddressHeader.HeaderSize", at)
  end
end

function Chain:walk_headers()
  self:base_header()
  self:user_header()
  if has(self.flags, constants.USER_FLAG_TH) then
    self:transaction_header()
  end
  if has(self.flags, constants.USER_FLAG_SH) then
    self:security_header()
  end
  local base = self.start
  if has(self.flags, constants.USER_FLAG_MP) then
    base = self:properties_header()
  else
    self:note("UserHeader.Flags.MP", self.start + 60)
  end
  if has(self.base_flags, constants.BASE_FLAG_DH) then
    self:debug_header()
  end
  local over_http = self.over_rpc and has(self.flags, constants.USER_FLAG_AH)
  if over_http then
    base = self:srmp_headers(base)
  elseif self.sections and self.sections.srmp then
    self.reader:fail("malformed", "SectionBufferType", self.start)
  end
  if has(self.flags, constants.USER_FLAG_HH) then
    self:soap_header(base)
  end
  if has(self.flags, constants.USER_FLAG_MQ) then
    self:multi_queue_header(base)
  end
  self:session_header()
  self.message_end = self.reader.at
  if self.remote_read and self.reader:left() > 0 then
    self:trailing_headers()
  end
  if self.reader:left() > 0 then
    self.reader:fail("malformed", "packet")
  end
end

-- Walk a packet; the other size of its body is tried where two are possible and one does not fit.
function Chain.read(tvb, start, stop, protocol, sections)
  local chain = Chain.new(tvb, start, stop, protocol, sections, false)
  chain.error = attempt(chain.walk_headers, chain)
  if chain.error and chain.two_spans then
    local again = Chain.new(tvb, start, stop, protocol, sections, true)
    if not attempt(again.walk_headers, again) then
      return again
    end
  end
  return chain
end
