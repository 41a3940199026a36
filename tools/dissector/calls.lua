-- Calls of the RPC interfaces: a post-dissector that reads the PDUs that the dissector of DCE/RPC found. Requests do not
-- say their interface: it is known by the presentation context, from the bind of the same connection.
local calls_proto = Proto("msmq_calls", "Message Queuing calls")
local pdu_types = Field.new("dcerpc.pkt_type")

local associations  -- by stream: contexts, binds that wait for an answer, calls that are open
local halves        -- by frame and place: the requests, responses and faults that end there
local opened        -- by handle: the queue that a call opened

local function forget_calls()
  associations, halves, opened = {}, {}, {}
end

local function unsigned(tvb, at, size, big)
  return big and tvb(at, size):uint() or tvb(at, size):le_uint()
end

-- The header of a PDU; nil where it is not whole, or not of version 5.
local function read_header(tvb, at)
  if at < 0 or tvb:len() - at < constants.PDU_HEADER_BYTES or tvb(at, 1):uint() ~= 5 then
    return nil
  end
  local big = not has(tvb(at + 4, 1):uint(), 16)
  local pdu = {
    tvb = tvb, at = at, big = big, type = tvb(at + 2, 1):uint(), flags = tvb(at + 3, 1):uint(),
    size = unsigned(tvb, at + 8, 2, big), auth_size = unsigned(tvb, at + 10, 2, big),
    call_id = unsigned(tvb, at + 12, 4, big),
  }
  if pdu.size > tvb:len() - at then
    return nil
  end
  pdu.stop = at + pdu.size  -- of the stub
  if pdu.auth_size > 0 then
    local trailer = pdu.stop - pdu.auth_size - 8
    if trailer < at + constants.PDU_HEADER_BYTES then
      return nil
    end
    pdu.sealed = tvb(trailer + 1, 1):uint() == 6
    pdu.pad = tvb(trailer + 2, 1):uint()
    pdu.stop = trailer
  end
  return pdu
end

-- Contexts that a bind proposes: by context id, interface and transfer syntaxes.
local function read_bind(pdu)
  local reader = Reader.new(pdu.tvb, pdu.at, pdu.stop, {big = pdu.big})
  reader:advance(24, "bind")
  local count = reader:number(1, "bind")
  reader:advance(3, "bind")
  local contexts = {}
  for place = 1, count do
    local context = {id = reader:number(2, "bind"), syntaxes = {}}
    local syntaxes = reader:number(1, "bind")
    reader:advance(1, "bind")
    context.interface = guid(pdu.tvb, reader:advance(20, "bind"), pdu.big, true)
    for number = 1, syntaxes do
      context.syntaxes[number] = guid(pdu.tvb, reader:advance(20, "bind"), pdu.big, true)
    end
    contexts[place] = context
  end
  return contexts
end

-- Results of a bind, in the order of its contexts: the accepted transfer syntax, or false.
local function read_bind_ack(pdu)
  local reader = Reader.new(pdu.tvb, pdu.at, pdu.stop, {big = pdu.big})
  reader:advance(24, "bind_ack")
  reader:advance(reader:number(2, "bind_ack"), "bind_ack")
  reader:align(4)
  local count = reader:number(1, "bind_ack")
  reader:advance(3, "bind_ack")
  local results = {}
  for place = 1, count do
    local result = reader:number(2, "bind_ack")
    reader:advance(2, "bind_ack")
    local syntax = guid(pdu.tvb, reader:advance(20, "bind_ack"), pdu.big, true)
    results[place] = result == 0 and syntax
  end
  return results
end

local function follow_bind(association, pdu)
  if pdu.type == constants.BIND or pdu.type == constants.ALTER_CONTEXT then
    local raised = attempt(function()
      association.binds[pdu.call_id] = read_bind(pdu)
    end)
    for _, context in ipairs(not raised and association.binds[pdu.call_id] or {}) do
      association.contexts[context.id] = {interface = context.interface, syntax = context.syntaxes[1]}
    end
    return
  end
  local proposed = association.binds[pdu.call_id] or {}
  if pdu.type == constants.BIND_NAK then
    for _, context in ipairs(proposed) do
      association.contexts[context.id] = nil
    end
    return
  end
  attempt(function()
    for place, syntax in ipairs(read_bind_ack(pdu)) do
      if proposed[place] then
        association.contexts[proposed[place].id] = syntax and {interface = proposed[place].interface, syntax = syntax} or nil
      end
    end
  end)
  association.binds[pdu.call_id] = nil
end

local STUB_AT = {[constants.REQUEST] = 24, [constants.RESPONSE] = 24, [constants.FAULT] = 32}
local DIRECTIONS = {[constants.REQUEST] = "request", [constants.RESPONSE] = "response", [constants.FAULT] = "fault"}

-- Take a fragment in the first pass; return the half of a call that it ends, or nil.
local function follow_fragment(association, pdu, frame)
  local start = pdu.at + STUB_AT[pdu.type]
  local direction = DIRECTIONS[pdu.type]
  if pdu.type == constants.REQUEST and has(pdu.flags, constants.OBJECT_UUID) then
    start = start + 16
  end
  if start > pdu.stop then
    return nil
  end
  local stop = pdu.stop
  if pdu.pad and pdu.pad <= stop - start then
    stop = stop - pdu.pad
  end
  local call = association.calls[pdu.call_id]
  local is_first = has(pdu.flags, constants.FIRST_FRAG)
  if pdu.type == constants.REQUEST and (is_first or not call) then
    call = {opnum = unsigned(pdu.tvb, pdu.at + 22, 2, pdu.big)}
    association.calls[pdu.call_id] = call
  elseif not call then
    call = {}
    association.calls[pdu.call_id] = call
  end
  local half = call[direction]
  if not half or is_first then
    local context = association.contexts[unsigned(pdu.tvb, pdu.at + 20, 2, pdu.big)]
    half = {direction = direction, call = call, call_id = pdu.call_id, big = pdu.big, parts = {}}
    half.interface = context and declared.interfaces[context.interface]
    half.ndr64 = context and declared.transfer_syntaxes[context.syntax] == "NDR64"
    if pdu.type == constants.FAULT then
      half.status = unsigned(pdu.tvb, pdu.at + 24, 4, pdu.big)
    end
    call[direction] = half
  end
  half.sealed = half.sealed or pdu.sealed
  if not half.interface then
    return nil
  end
  if has(pdu.flags, constants.LAST_FRAG) then
    half.frame, half.start, half.stop = frame, start - pdu.at, stop - pdu.at
    if #half.parts > 0 then
      table.insert(half.parts, stop > start and pdu.tvb(start, stop - start):raw() or "")
      half.stub, half.parts = table.concat(half.parts), {}
    end
    call[direction .. "_packet"] = frame
    return half
  end
  table.insert(half.parts, stop > start and pdu.tvb(start, stop - start):raw() or "")
  return nil
end

-- Whether a method's result means success, as udfs/call_results.py has it.
local function succeeded(interface, result)
  local informs = interface == "qmcomm" or interface == "qmcomm2"
  return result == 0 or (informs and result >= 0x400E0001 and result <= 0x400E00FF)
end

local function show_result(tree, half, stub)
  local result = stub.values["return"]
  if result == nil then
    return true
  end
  local method = half.interface.methods[half.call.opnum]
  local is_port = method.response[#method.response].abbr == "msmq.returned_port"
  if is_port then
    return result ~= 0
  end
  local name = code_name("hresult", result)
  local item = show(tree, "hresult_name", name)
  half.line = half.line .. " " .. name
  if not succeeded(half.interface.name, result) then
    item:add_proto_expert_info(experts.failed, name)
    return false
  end
  return true
end

-- The handle by which a stub names an open queue: a context handle, or in qm2qm and qmcomm two numbers of the server.
local function queue_handle(values, server)
  local handle = values.phContext or values.phContextFrom
  local queue = values.hRemoteQueue or values.hQueue or values.phQueue
  local descriptor = values.dwQueue or values.pQueue or values.dwpQueue
  if not handle and type(queue) == "number" and descriptor then
    handle = server .. "/" .. digits(queue) .. "/" .. digits(descriptor)
  end
  return handle
end

-- The queue that a call opens, or whose handle it has; an opening's response gives the handle, which may be used again.
-- Only the first time that a half is shown, which is in the order of the file.
local function queue_of(half, stub)
  local call = half.call
  if not half.followed then
    half.followed = true
    local handle = queue_handle(stub.values, call.server)
    call.opens = call.opens or stub.queue ~= nil
    call.queue = call.queue or stub.queue or (handle and opened[handle])
    if call.opens and handle and half.direction == "response" then
      opened[handle] = call.queue
    end
  end
  return call.queue
end

-- Show the stub of a request or response, and the message that it carries.
local function show_stub(tree, half, tvb, start, stop)
  local method = half.interface.methods[half.call.opnum]
  local params = method and method[half.direction]
  if not params or #params == 0 then
    return
  end
  local stub = Stub.new(tvb, start, stop, tree, {big = half.big, ndr64 = half.ndr64})
  local raised = attempt(stub.parameters, stub, params)
  if raised then
    show_error(tree, raised)
  end
  local queue = queue_of(half, stub)
  if queue then
    half.line = half.line .. " " .. printable(queue)
    if not stub.queue then
      show(tree, "queue", queue)
    end
  end
  if half.direction ~= "response" or not show_result(tree, half, stub) or raised then
    return
  end
  local packet, first, last, sections = stub:packet()
  if packet then
    show(tree, "packet_bytes", last - first)
    local sub = tree:add(msmq, packet(first, last - first), "Message packet")
    local chain = show_message(sub, packet, first, last, half.interface.name == "qm2qm" and constants.PROTOCOL_QM2QM
      or constants.PROTOCOL_REMOTE_READ, sections)
    local label = chain.label and chain.label.text
    if label and label ~= "" then
      half.line = half.line .. " \"" .. printable(label) .. "\""
    end
  end
end

-- Show the half of a call that ends with a PDU.
local function show_half(half, pdu, pinfo, tree)
  half.call.server = address(half.direction == "request" and "dst" or "src")
  local call, method = half.call, half.interface.methods[half.call.opnum]
  half.line = (method and method.name or "opnum " .. (call.opnum and digits(call.opnum) or "not seen")) .. " " .. half.direction
  local sub = tree:add(msmq, pdu.tvb(pdu.at, pdu.size))
  if half.interface.name == "qm2qm" or half.interface.name == "RemoteRead" then
    show(sub, "protocol", half.interface.name)
  end
  show(sub, "interface_name", half.interface.name)
  show(sub, "opnum", call.opnum)
  show(sub, "method", method and method.name)
  show(sub, "direction", half.direction)
  show(sub, "call_id", half.call_id)
  if half.direction == "request" then
    show(sub, "response_packet", call.response_packet or call.fault_packet)
  else
    show(sub, "request_packet", call.request_packet)
    show(sub, "outcome", half.direction == "fault" and "fault" or half.sealed and "encrypted" or "ok")
  end
  if half.direction == "fault" then
    local name = code_name("hresult", half.status)
    show(sub, "fault_status", half.status)
    show(sub, "fault_name", name):add_proto_expert_info(experts.failed, name)
    half.line = half.line .. " " .. name
  elseif half.sealed then
    sub:add_proto_expert_info(experts.sealed)
  elseif half.stub then
    local whole = ByteArray.new(half.stub, true):tvb("Message Queuing stub")
    show_stub(sub, half, whole, 0, whole:len())
  else
    show_stub(sub, half, pdu.tvb, pdu.at + half.start, pdu.at + half.stop)
  end
  sub:append_text(", " .. half.line)
  pinfo.cols.protocol = "MSMQ"
  return half.line
end

function calls_proto.dissector(_, pinfo, tree)
  local stream = tcp_stream()
  note_hole(stream, pinfo)  -- a segment in the middle of a packet reaches no other function
  if not stream or not msmq.prefs.rpc then
    return
  end
  local lines = {}
  for _, found in ipairs({pdu_types()}) do
    local pdu = found.source and read_header(found.source, found.offset - 2)
    if pdu then
      local key = pinfo.number .. "/" .. pdu.tvb:len() .. "/" .. pdu.at
      if halves[key] == nil then
        halves[key] = false
        associations[stream.value] = associations[stream.value] or {contexts = {}, binds = {}, calls = {}}
        local association = associations[stream.value]
        if STUB_AT[pdu.type] and pdu.size >= STUB_AT[pdu.type] then
          halves[key] = follow_fragment(association, pdu, pinfo.number) or false
        elseif pdu.type >= constants.BIND and pdu.type <= constants.ALTER_CONTEXT_RESP then
          follow_bind(association, pdu)
        end
      end
      if halves[key] then
        table.insert(lines, show_half(halves[key], pdu, pinfo, tree))
      end
    end
  end
  if #lines > 0 then
    pinfo.cols.info = table.concat(lines, "; ")
  end
end

register_postdissector(calls_proto)

function msmq.init()
  forget_sessions()
  forget_calls()
end
