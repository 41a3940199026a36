-- A message packet in the tree: its headers, and what they say together.

-- Whether RemoteRead writes an address over the identifier of the queue manager, [MS-MQRR] 2.2.5.1.
local function is_overlaid(chain)
  return chain.remote_read and bits(chain.flags, declared.queue_names[1].shift, 3) == constants.DIRECT_NAME_TYPE
end

-- The queue manager whose private queue a name means, [MS-MQQB] 3.1.7.15; nil if that is not known.
local function private_queue_owner(chain, kind)
  local tvb, admin = chain.tvb, chain.queues.AdminQueue
  if kind == 4 then
    if admin.kind == 6 then
      return guid(tvb, admin.at)
    end
    kind = admin.kind
  end
  if kind == 2 then
    return guid(tvb, chain.user_at)
  end
  if kind == 3 and not is_overlaid(chain) then
    return guid(tvb, chain.user_at + 16)
  end
  return nil
end

-- The normal form of a queue name of the UserHeader; nil without one.
local function user_queue(chain, name)
  local found = chain.queues[name]
  if not found then
    return nil
  end
  if name == "ResponseQueue" and found.kind == 1 then
    return user_queue(chain, "AdminQueue")
  end
  if found.kind == constants.DIRECT_NAME_TYPE then
    return direct_queue_name(utf16(chain.tvb, found.at, found.size)), found
  elseif found.kind == 5 then
    local id = guid(chain.tvb, found.at)
    return id and "public=" .. id, found
  elseif found.kind == 6 then
    local id = guid(chain.tvb, found.at)
    return id and string.format("%s\\%08x", id, chain.tvb(found.at + 16, 4):le_uint()), found
  elseif found.kind >= 2 then
    local owner = private_queue_owner(chain, found.kind)
    return owner and string.format("%s\\%08x", owner, chain.tvb(found.at, 4):le_uint()), found
  end
  return nil
end

local function message_kind(class)
  if class == constants.MQMSG_CLASS_REPORT then
    return "report"
  end
  local acknowledges = declared.positive_acknowledgements[class] or has(class, constants.NEGATIVE_CLASS_BIT)
  return acknowledges and "administration_ack" or "application"
end

-- What the text of a report says, [MS-MQQB] 3.1.5.8.9.
local function show_report(tree, chain)
  local hex = "%x%x%x%x"
  local source, ordinal, hops = (chain.label.text or ""):match(
    "^(" .. hex .. "):(" .. hex .. hex .. "):(%x%x) received by ")
  if not source then
    return
  end
  show(tree, "report.source_prefix", source:lower())
  show(tree, "report.message_ordinal", tonumber(ordinal, 16))
  show(tree, "report.hop_count", tonumber(hops, 16))
  local text = utf16(chain.tvb, chain.body.at, chain.body.seen)
  local hop = text and text:match("<NEXT HOP>([^<]*)</NEXT HOP>")
  hop = hop and hop:match("^%s*(.-)%s*$")
  if hop and hop ~= "" then
    show(tree, "report.next_hop", hop)
  end
end

-- Lifetimes in seconds from the time sent. RemoteRead sends a time; for qm2qm it is not specified: a plausible time is one.
local function show_lifetimes(tree, chain)
  local reach = chain:field("BaseHeader", chain.start, "TimeToReachQueue")
  local sent = chain:field("UserHeader", chain.user_at, "SentTime")
  local received = chain:field("UserHeader", chain.user_at, "TimeToBeReceived")
  if reach ~= constants.INFINITE_TIMEOUT and not (chain.remote_read and reach < sent) then
    local absolute = chain.remote_read or (chain.over_rpc and reach > sent and reach > 1000000000)
    show(tree, "time_to_reach_queue_s", absolute and reach - sent or reach)
  end
  if received ~= constants.INFINITE_TIMEOUT then
    show(tree, "time_to_be_received_s", received)
  end
end

-- The address that RemoteRead writes there.
local function overlay_address(chain)
  local at = chain.user_at + 16
  if is_overlaid(chain) and not chain.has_address
    and chain.tvb(at + 2, 2):le_uint() == constants.ADDRESS_TYPE_IPV4 then
    return ip_text(constants.ADDRESS_TYPE_IPV4, chain.tvb(at + 8, 4):raw())
  end
  return nil
end

local function show_properties(tree, chain)
  local tvb, at, header = chain.tvb, chain.properties_at, "MessagePropertiesHeader"
  local class = chain:field(header, at, "MessageClass")
  local item = show(tree, "class_name", code_name("class", class, 4))
  show(tree, "message_kind", message_kind(class))
  if has(class, constants.NEGATIVE_CLASS_BIT) then
    item:add_proto_expert_info(experts.negative, code_name("class", class, 4))
  end
  local correlation = tvb(at + 4, 20)
  if correlation:raw() ~= string.rep("\0", 20) then
    local text = guid(tvb, at + 4, false, true) .. "\\" .. digits(tvb(at + 20, 4):le_uint())
    show(tree, "correlation_id", text, correlation)
  end
  if chain.label and chain.label.size > 0 then
    show(tree, "label", chain.label.text, tvb(chain.label.at, chain.label.size))
  end
  local body = chain.body
  show(tree, "body_bytes", body.size)
  show(tree, "body_complete", body.size and body.seen == body.size)
  if not chain.whole.properties then
    return
  end
  local extension = chain.extension
  if extension.size > 0 then
    tree:add(fields["msmq.extension"], tvb(extension.at, extension.size))
  end
  local is_comqc = extension.size > 0 and tvb(extension.at, extension.size):raw() == constants.COMQC_EXTENSION
  show(tree, "is_comqc", is_comqc)
  show(tree, "body_bytes_seen", body.seen)
  if (body.seen or 0) > 0 then
    tree:add(fields["msmq.body"], tvb(body.at, body.seen))
  end
  if class == constants.MQMSG_CLASS_REPORT then
    show_report(tree, chain)
  end
end

-- Show what the headers say together, under the names of the columns; return the message's identifier.
local function show_message_columns(tree, chain)
  show(tree, "seen_in", chain.protocol)
  if not chain.user_at then
    return nil
  end
  local id = guid(chain.tvb, chain.user_at, false, true) .. "\\"
    .. digits(chain:field("UserHeader", chain.user_at, "MessageID"))
  show(tree, "message_id", id)
  local manager = guid(chain.tvb, chain.user_at + 16)
  if not is_overlaid(chain) then
    show(tree, "queue_manager_address", manager)
    if not chain.over_rpc then
      show(tree, "destination_queue_manager", manager)
    end
  end
  local mode = bits(chain.flags, 5, 2)
  if mode < 2 then
    show(tree, "delivery", mode == 1 and "recoverable" or "express")
  end
  for _, name in ipairs({"DestinationQueue", "AdminQueue", "ResponseQueue"}) do
    local text, found = user_queue(chain, name)
    local column = name == "DestinationQueue" and "destination_queue" or name == "AdminQueue" and "admin_queue" or "response_queue"
    if text then
      show(tree, column, text, found and chain.tvb(found.span[1], found.span[2]))
    end
  end
  show(tree, "is_srmp", chain.over_rpc and has(chain.flags, constants.USER_FLAG_AH))
  show_lifetimes(tree, chain)
  show(tree, "sender_address", overlay_address(chain))
  if chain.properties_at then
    show_properties(tree, chain)
  end
  return id
end

-- Show a message packet; return its chain and identifier.
local function show_message(tree, tvb, start, stop, protocol, sections)
  local chain = Chain.read(tvb, start, stop, protocol, sections)
  for place, part in ipairs(chain.parts) do
    local following = chain.parts[place + 1]
    local finish = following and following.at or stop
    local sub = tree:add(msmq, tvb(part.at, math.max(0, finish - part.at)), part.name)
    show_header(sub, tvb, part.at, finish, part.layout)
    for _, item in ipairs(part.items) do
      local range = item.size > 0 and tvb(item.at, item.size) or nil
      if item.text then
        sub:add(fields["msmq.octets"], range):prepend_text(item.text .. ", ")
      else
        show(sub, item.name, item.value, range)
      end
    end
  end
  local id = show_message_columns(tree, chain)
  if chain.error then
    show_error(tree, chain.error)
  end
  for _, note in ipairs(chain.notes) do
    note.soft = true
    show_error(tree, note)
  end
  return chain, id
end
