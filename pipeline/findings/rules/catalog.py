"""The table of conformance rules: those of the fact sheet on RPC interfaces, section 4.7, on packets (T), and on queued components (K). Data only.

Columns: the rule's id; its source; its level (M MUST, S SHOULD, D derived from the text); the party that it binds (C
client, S server, B either); what must be readable (H headers and lengths, S stubs, P message packets); the rule with its
own precondition; what counts as a violation. D<number> are the doubts of the fact sheet, section 5.

The source is a section, or several that state the same for different methods or cases: ``Rule.source_for`` says which
one a finding names. ``method`` is the section of the call's method. The document of a section without one is that of
the rule's interface.
"""

# ruff: noqa: E501 - one rule per line

from __future__ import annotations

from typing import Final

RULE_TABLE: Final = """
P01 | C706 12.6 | M | C | H | requests use only accepted p_cont_ids of their connection | request on an unknown or rejected p_cont_id
P02 | C706 12.6 | M | B | H | call_id unique among outstanding calls of a connection; responses/faults answer an outstanding call with the same p_cont_id | reuse while outstanding; orphan response; other p_cont_id
P03 | MQRR 3.1.4, MQMP 3.1.4 | M | C | H | reserved opnums never sent: RemoteRead 1; qmcomm 0, 5, 13, 21, 24, 25, 29, 30, 32, 33, 34 | request with such an opnum
P04 | C706 12.6.4.7 | M | S | H | opnum beyond the interface (qm2qm > 10, RemoteRead > 15, qmmgmt > 1, qmcomm > 34, qmcomm2 > 3) is faulted | a response
P05 | RPCE 3, MQQP 3.1.4, MQRR 3.1.4, MQMR 3.1.4 | M | S | S | strict NDR consistency, level 6.0 (5.0 on 2000..2003, none on NT): malformed stub must be faulted (0x6F7) | response to a request whose stub does not decode or leaves octets other than padding / verification trailer
P06 | RPCE 3 | M | S | S | range() violated (dwSize, dwAck, dwMQS, dwPortType, cp, cbPropagationToken ...) => fault 0x6F7 at level >= 5.0 | normal processing (MQ_OK or other effect). A returned error is tolerated (D13)
P07 | MQRR 3.1.4, MQMR 3.1.4 | M | S | S | NULL unique pointer with non-zero conformant value rejected | MQ_OK for a request with cElems/cbSize > 0 and ref 0
P08 | MQMR 2.2 | M | B | H | qmmgmt bound with NDR only | qmmgmt context accepted with NDR64
P09 | MQQP 2.2, MQRR 2.2 | M | S | H | qm2qm, RemoteRead support NDR and NDR64 | bind offering only NDR refused with reason 2; or NDR64-only refused by a peer known to be 64-bit
P10 | RPCE 3, MQRR 2.2.4 | M | S | S | context handle of another interface rejected | success with a ctx20 born on another interface
P11 | RPCE 3.3 | D | S | S | context handle valid only inside its association group and until closed | success with a ctx20 that is closed, run down, or from another group
P12 | method | M | S | H | qmmgmt methods throw no exceptions of their own | fault carrying an MSMQ HRESULT
P13 | method | M | S | H | qm2qm (except 6), RemoteRead (except 2, 11) throw nothing but RPC-layer codes | fault with 0xC00Exxxx on those opnums
P14 | MQRR 3.1.4.2, MQRR 3.1.4.11 | M | S | H | RemoteRead 2 and 11 report failure only by fault; a response implies a non-NULL ctx20 | response with NULL ctx20
P15 | method | M | S | S | HRESULT is MQ_OK or has bit 31 set | any other value (exception: 0x400E03E9 on a cancelled qm2qm read, D5)
Q01 | 2.2.2.1 | M | C | S | D.dwSize = 0 in requests | non-zero
Q02 | 2.2.2.1 | M | C | H/S | D.lpBuffer NULL in requests | ref non-zero (request longer than 44/48, 60/64, 68/72)
Q03 | 2.2.2.1 | M | S | S | D.dwSize <= 0x00420000; with buffer max = actual = dwSize, offset 0 | otherwise
Q04 | 3.1.4.1, 3.1.4.10, 3.1.4.11 | M | S | P | MQ_OK: lpBuffer non-NULL, dwSize = BaseHeader.PacketSize (u32 @8 of the buffer), version octet 0x10, signature LIOR @4 | otherwise
Q05 | 3.1.4.1, 3.1.4.10 | M | C | S | opnum 0, 9: ulAction in {0, 0x80000000, 0x80000001} | other
Q06 | 3.1.4.11 | M | C | S | opnum 10: ulAction in the six MQ_LOOKUP values | other
Q07 | 3.1.4.1, 3.1.4.10 | M | B | S | PEEK_NEXT needs hCursor != 0; else server returns 0xC000000D | client: hCursor 0; server: MQ_OK
Q08 | 3.1.4.1, 3.1.4.10 | M | B | S | dwQueue != 0 and = hRemoteQueue, else 0xC00E0006 (not NT/2000, D8) | client sent it; server MQ_OK
Q09 | 3.1.4.1, 3.1.4.10 | S | S | S | another read in flight with the same (hRemoteQueue, dwRequestID) => 0xC00E0006 | MQ_OK (2003+)
Q10 | 2.2.2.1 | M | C | S | dwRequestID differs from every pending read of that client; SHOULD NOT be reused before EndReceive or CancelReceive of the earlier one | reuse
Q11 | 3.1.4.1, 3.1.4.10, 3.1.4.11 | M | S | S | no OpenQueueEntry for hRemoteQueue (never opened by qm2qm 2, or closed) => 0xC00E0006 | MQ_OK
Q12 | 3.1.4.1, 3.1.4.10 | M | S | S | hCursor != 0 and not an open cursor of that queue handle => 0xC000000D | MQ_OK
Q13 | 2.2.2.1 | M | C | S | non-zero hCursor was returned by qmcomm 4 for that hQueue | unknown cursor
Q14 | 3.1.4.1, 3.1.4.10, 3.1.4.11 | M | S | S | MQ_OK + receive class: pphContext non-NULL, distinct from live ones | NULL
Q15 | 3.1.4.1, 3.1.4.10, 3.1.4.11 | M | S | S | peek class, or failure: pphContext NULL | non-NULL
Q16 | 3.1.4.2, 3.1.4.1 | M | C | S | each successful receive is followed by EndReceive (same ctx20) | still open at CloseQueue of its session, or at the end of the connection with no EndReceive
Q17 | 3.2.4.2 | D | C | S | no EndReceive after a peek | EndReceive with NULL ctx
Q18 | 3.1.4.2 | M | C | S | EndReceive ctx20 = one returned by 0/9/10, used once | unknown, NULL, or second use
Q19 | 3.1.4.2 | M | S | S | NULL pphContext => 0xC00E0007 (or context fault) | MQ_OK
Q20 | 3.1.4.2 | M | C | S | dwAck in {1, 2} | other
Q21 | 3.1.4.2 | M | S | S | EndReceive MQ_OK returns NULL pphContext | non-NULL
Q22 | 3.1.4.2 | M | S | P | after RR_ACK + MQ_OK the message is not available again | same LookupId/message id returned by a later read of that queue
Q23 | 3.1.4.2 | M | S | P | after RR_NACK the message stays available (unless purge pending, expired, or deleted by others) | later receive of the front skips it while lower-ordered messages are returned (informational unless single consumer)
Q24 | MQDMPR 3.1.7.1.11 | D | S | P | between receive MQ_OK and EndReceive/rundown the message is locked | another receive returns it
Q25 | MQDMPR 3.1.7.1.12 | D | S | S | EndReceive for a message already available again => 0xC00E0051 | MQ_OK
Q26 | 3.1.4.3 | M | B | S | pQueue = 0 or dwpContext = 0 => 0xC00E0006 | client; server MQ_OK
Q27 | 3.1.4.3 | S | S | S | pQueue != dwpContext => 0xC00E0006 (2003+) | MQ_OK
Q28 | 3.1.4.3 | M | S | S | NT/2000 server: hQueue not a live handle => 0xC00E0006 | MQ_OK
Q29 | 3.1.4.3 | M | S | S | MQ_OK: phContext non-NULL, distinct from live sessions | otherwise
Q30 | 3.2.4.1 | M | C | S | hQueue = phQueue, pQueue = dwpQueue, dwpContext = pdwContext of one qmcomm 2 response of that owner, still live | mismatch
Q31 | 3.2.4.1 | M | C | S | dwMQS is 0 or 1 (IDL allows 0..16) | other
Q32 | 3.1.4.3 | D | C | S | pLicGuid = the client QM's identifier: non-nil, constant per client host | changes or nil
Q33 | 3.2.4.1 | M | C | H | client calls opnum 7 on an initial binding, then opens a new connection on the returned port for opnum 2 (NT..2003 clients only) | opnum 2 without opnum 7, or on another port
Q34 | 3.2.4.1 | S | C | H | opnum 2 unanswered after 300 s is cancelled | no co_cancel/orphaned/close within 300 s + slack
Q35 | 3.1.4.3 | M | C | S | opnums 0, 1, 3, 4, 5, 6, 9, 10 on a handle come after a successful opnum 2 for it | no open session for the handle
Q36 | 3.1.4.4 | M | S | S | NULL pphContext => 0xC00E0007 | MQ_OK
Q37 | 3.1.4.4 | M | S | S | MQ_OK: pphContext returned NULL | non-NULL
Q38 | 3.1.4.4 | M | S | H | CloseQueue cancels every read in flight on the handle | a read on H still unanswered well after the CloseQueue response
Q39 | 3.1.4.4 | M | C | S | client closes every session it opened | session ended by connection loss only
Q40 | 3.1.4.5 | M | B | S | CloseCursor with unknown hQueue or hCursor => 0xC00E0007 | client; server MQ_OK
Q41 | 3.1.4.5 | M | C | S | client closes every cursor it created | cursor alive at session close (informational on Windows)
Q42 | 3.1.4.6 | M | B | S | pQueue = 0 or != hQueue => 0xC00E0006 (NT/2000: 0xC00E0007 if either is 0) | client; server MQ_OK
Q43 | 3.1.4.6 | M | S | S | no read in flight on hQueue => 0xC00E0007 | MQ_OK
Q44 | 3.1.4.6 | M | S | S | reads in flight, none with dwRequestID => 0xC00E0001 | MQ_OK
Q45 | 3.1.4.6 | M | C | S | dwRequestID of Cancel matches an earlier 0/9 request on that handle | unknown id
Q46 | 3.1.4.6 | M | S | S | Cancel MQ_OK: the read completes, without message, NULL ctx, status 0x400E03E9 or a failure | message delivered, or no completion
Q47 | 3.1.4.6 | D | S | S | Cancel of a waiting peek (no tag) or of a read past waiting => 0xC0000225 | MQ_OK with the peek still pending
Q48 | 3.1.4.7 | M | S | S | Purge with hQueue not open => 0xC00E0007 (NT/2000/XP returned; 2003+ fault) | MQ_OK
Q49 | 3.1.4.7 | D | S | P | after Purge MQ_OK no message that was available before is returned | returned
Q50 | 3.1.4.8 | M | B | S | dwPortType in 0..3; other values => fault or 0 | client sends other; server non-zero
Q51 | 3.1.4.8 | D | S | S | 2 and 3 => 0 on XP and later | non-zero
Q52 | 3.1.4.8 | S | S | S | port = 2103 + 11k for 0/2, 2105 + 11k for 1/3 | other non-zero value
Q53 | 5 | M | S | H | opnum 7 is not access restricted | fault 5 or 0xC00E0025 on opnum 7
Q54 | 3.1.4.9 | S | S | S | (major, minor) is (6,1) or the table of 4.6; build plausible | other pair
Q55 | 3.2.4.2, 3.2.4.3, 3.2.4.5, 3.2.4.6 | S | C | H | opnum 8 precedes the first read (text 3.1.4.9 says before OpenQueue, D9); not from NT/2000 | read without opnum 8 on that binding or earlier from that client
Q56 | 3.2.4.2, 3.2.4.3, 3.2.4.5, 3.2.4.6 | M | C | S | server version < 5.1 => opnum 0; else opnum 9 (or 10). NT/2000 clients always opnum 0 | opnum 0 to a server known >= 5.1 (S level, from the SHOULD check; supporting servers per MQMP 3.1.5.3 use opnum 0), opnum 9 to < 5.1
Q57 | 3.1.4.10, 3.1.4.11 | M | B | S | pRemoteReadDesc NULL => 0xC00E0007 | client; server MQ_OK
Q58 | 3.2.4.2, 3.2.4.3, 3.2.4.5, 3.2.4.6 | M | C | S | SequentialId = 0 in opnum 9 requests | non-zero
Q59 | 3.1.4.10, 3.1.4.11 | M | S | S | response SequentialId top octet 0; on MQ_OK non-zero | otherwise
Q60 | 3.1.4.11 | D | S | S | *_CURRENT and MQ_OK: SequentialId = low 56 bits of LookupId | differs
Q61 | 3.1.4.11 | M | S | S | hRemoteQueue = 0, ulTimeout != 0 or hCursor != 0 => 0xC00E0006 | MQ_OK
Q62 | 3.1.4.11 | M | C | S | opnum 10: ulTimeout = 0, hCursor = 0 | otherwise
Q63 | 3.1.4.11 | M | C | S | LookupId != 0 for CURRENT and PREV actions | 0
Q64 | 3.1.2, 3.1.4.1 | M | S | H/S | finite ulTimeout > 0: response no later than ulTimeout + slack; 0xC00E001B not earlier than ulTimeout - slack; ulTimeout 0 and opnum 10: answered at once | otherwise (slack: 1 s + RTT; timers have 1 s granularity)
Q65 | 2.2.2.1 | M | S | S | dwArriveTime set on MQ_OK: non-zero, <= response time + clock skew, >= UserHeader.SentTime - skew | otherwise (soft)
Q66 | 5 | S | S | H | unauthenticated calls (no sec context) other than opnum 7 refused with 0xC00E0025 | MQ_OK
Q67 | 3.1.6.1 | M | S | P | connection loss NACKs un-acknowledged receives and closes sessions | H still usable, or message never seen again while the queue is read (informational)
Q68 | 3.2.4.3, 3.2.4.6 | M | C | S | dwAck = 2 when the packet was usable, 1 otherwise | NACK without visible reason (informational)
Q69 | 3.1.4.1, 3.1.4.10, 3.1.4.11 | D | S | S | response echoes hRemoteQueue, hCursor, ulAction, ulTimeout, dwQueue, dwRequestID | changed (soft)
R01 | 2.2.3, 3.1.4.2, 3.1.4.11 | M | C | S | m_qft in {1, 2, 3, 4, 8} (0 listed as supported type but not valid to open) | other
R02 | 2.2.3 | M | C | S | DIRECT / SUBQUEUE string starts 'TCP:' or 'OS:' (case-insensitive) | other protocol
R03 | MQMQ 2.2.7 | M | C | S | m_SuffixAndFlags combinations: NONE => flags 0, qft != 4; JOURNAL => 0x80, qft not 5, 6, 7; DEADLETTER => 0x80, qft 3 or 4 (not 1, 2, 5, 6, 7); DEADXACT => 0x80, qft 3 or 4; XACTONLY => qft 5; SUBQUEUE => flags 0, qft 8 | otherwise
R04 | 3.1.4.2 | M | C | S | dwAccess in {0x01, 0x20}; dwShareMode in {0, 1} | other
R05 | 3.1.4.2, 3.1.4.11 | M | C | S | fNonRoutingServer, fWorkgroup in {0, 1} | other
R06 | 3.1.4.2, 3.1.4.11 | D | C | S | (Major, Minor) in {(5,2), (6,0), (6,1)} for Windows clients | other (informational)
R07 | 3.1.4.2 | M | S | H/S | invalid parameter => fault 0xC00E0006; unknown queue => fault 0xC00E0003; 2003 licence limit => 0xC00E0067 | response PDU for an invalid request
R08 | 3.1.4.2 | D | S | S | while a handle with DENY_SHARE + RECEIVE is open on the queue, a second open with DENY_SHARE, or with DENY_NONE + RECEIVE, faults 0xC00E0009; a DENY_SHARE + PEEK handle blocks RECEIVE opens; an open DENY_NONE + RECEIVE handle blocks DENY_SHARE opens | success
R09 | 3.1.4.2, 3.1.4.11 | D | S | S | new ctx20 distinct from live ones | duplicate
R10 | method | M | C | S | opnums 4, 5, 6, 7, 8, 9, 10 (source), 13, 14, 15 use a ctx20 from opnum 2 (not 11), not yet closed | other
R11 | 3.1.4.3 | M | C | S | CloseQueue ctx20 from 2 or 11, non-NULL, closed once | otherwise
R12 | 3.1.4.3 | M | S | S | MQ_OK returns NULL ctx | non-NULL
R13 | 3.1.4.3 | M | S | H | CloseQueue completes the waiting reads of the ctx (0xC00E0008 per MQDMPR Close Queue) | left pending
R14 | 3.2.4.13 | M | C | S | client closes every handle | ended by connection loss only
R15 | 3.2.4.13 | S | C | S | client cancels pending requests before closing cursor / queue and closes cursors before the queue (notes 36, 37: Windows does not) | informational only
R16 | 3.1.4.5 | M | B | S | hCursor open on that ctx20, closed once; otherwise failure | client misuse; server MQ_OK
R17 | 3.1.4.5 | M | C | S | client closes cursors it created | informational
R18 | 3.1.4.6 | M | B | S | Purge only on RECEIVE_ACCESS; otherwise 0xC0000022 | client misuse; server MQ_OK
R19 | 3.1.4.7, 3.1.4.13 | M | C | S | receive-class action only on RECEIVE_ACCESS ctx | on PEEK_ACCESS
R20 | 3.1.4.13, 3.1.4.14 | M | C | S | opnum 13 and 14 only on RECEIVE_ACCESS ctx | otherwise
R21 | 3.1.4.7, 3.1.4.13 | M | B | S | ulAction in the nine values of 4.1, else 0xC00E0006 | client; server MQ_OK
R22 | 3.1.4.7, 3.1.4.13 | M | B | S | LookupId != 0 => ulTimeout 0, hCursor 0, ulAction MQ_LOOKUP_* | client; server MQ_OK
R23 | 3.1.4.7, 3.1.4.13 | M | B | S | LookupId = 0 => ulAction not MQ_LOOKUP_* (RECEIVE_PREV text conflict, D4) | client; server MQ_OK
R24 | 3.1.4.7, 3.1.4.13 | M | B | S | hCursor != 0 => LookupId 0 and ulAction in {0, 0x80000000, 0x80000001} | same
R25 | 3.1.4.7, 3.1.4.13 | M | B | S | PEEK_NEXT => hCursor != 0 | same
R26 | 3.1.4.7, 3.1.4.13 | M | B | S | MQ_LOOKUP_* => ulTimeout 0 | same
R27 | 3.1.4.7, 3.1.4.13 | M | B | S | unknown or closed hCursor => 0xC0000008 | client; server MQ_OK
R28 | 3.1.4.7, 3.1.4.13 | M | C | S | dwRequestId not reused on the same ctx until EndReceive / EndTransactionalReceive / CancelReceive for it completed | reuse
R29 | 3.2.4.3, 3.2.4.4.1, 3.2.4.4.2, 3.2.4.9, 3.2.4.10.1, 3.2.4.10.2 | M | C | S | dwRequestId unique among all pending calls of that client | duplicate outstanding
R30 | 3.1.4.7 | M | C | S | receive-class 7 with MQ_OK is followed by 9 (or 8) with the same id | missing at CloseQueue / loss
R31 | 3.1.4.13 | M | C | S | receive-class 13 with MQ_OK is followed by 15 (or 8) | missing
R32 | 3.1.4.9, 3.1.4.15 | M | C | S | 9 ends only op 7 reads, 15 ends only op 13 reads | crossed (op 13 with zero UOW: 15 still)
R33 | 3.1.4.7, 3.1.4.13 | D | C | S | no 9/15 after a peek | sent
R34 | 3.1.4.7, 3.1.4.13 | M | S | S | MQ_OK: ref non-NULL, nSections = max_count, 1 or 2 | otherwise
R35 | 3.1.4.7, 3.1.4.13 | M | S | S | types: {0} alone, {1}, {1,2}, {3} or {3,4} | other sequence
R36 | 2.2.6 | M | S | S | types 0, 2, 4: Alloc = Size; types 1, 3: Alloc >= Size (strictly > by construction) | otherwise
R37 | 2.2.6 | M | S | S | SectionSize = conformant max_count of pSectionBuffer | differs
R38 | 3.1.4.7, 3.1.4.13 | M | S | P | type 0: body (binary) <= dwMaxBodySize, or compound header (SRMP) <= dwMaxCompoundMessageSize; Size = packet size incl. ExtensionHeader etc. | full packet although larger; or split although it fits
R39 | 3.1.4.7, 3.1.4.13 | M | S | P | type 1/3: exactly max octets of body follow the headers: Alloc - Size = actual body (MessageSize) - dwMaxBodySize (or compound size - max) | otherwise
R40 | 3.1.4.7, 3.1.4.13 | M | S | S | second section present iff trailers exist after the body | SRMP/binary trailer evidence contradicts (soft)
R41 | 3.1.4.7, 3.1.4.13 | M | S | S | pSequenceId top octet 0, non-zero on MQ_OK; *_CURRENT: = low 56 bits of LookupId | otherwise
R42 | 3.1.4.7, 3.1.4.13 | M | S | S | dwArriveTime plausible UNIX time on MQ_OK | soft
R43 | 3.1.4.7, 3.1.4.13 | M | S | P | BaseHeader.TimeToReachQueue = SentTime + original value (absolute); so >= SentTime unless infinite/wrapped | smaller
R44 | 3.1.4.7, 3.1.4.13 | D | S | S | on failure outs are meaningless; normally nSections 0, ref NULL | informational
R45 | 3.1.4.7, 3.1.4.13 | M | S | H/S | response within ulTimeout + slack; 0xC00E001B not earlier; lookups immediate | otherwise
R46 | 3.1.4.8 | M | S | S | Cancel on a ctx/id that is not waiting => failure (0xC0000225 from MQDMPR) | MQ_OK
R47 | 3.1.4.8 | M | S | S | Cancel MQ_OK: the 7/13 call answers 0xC00E0008 | other, or no answer
R48 | 3.1.4.8 | M | C | S | Cancel's ctx and id are those of an earlier 7/13 request | unknown
R49 | 3.1.4.9, 3.1.4.15 | M | C | S | dwAck in {1, 2} | other
R50 | 3.1.4.9, 3.1.4.15 | M | B | S | no pending entry at all on the ctx => 0xC00E0007 | client; server MQ_OK
R51 | 3.1.4.9, 3.1.4.15 | M | B | S | pending entries but not this id => 0xC00E0006 | client; server MQ_OK
R52 | 3.1.4.9, 3.1.4.15 | M | S | S | message no longer in the queue => 0xC00E0088 | MQ_OK
R53 | 3.1.4.9 | M | S | P | ACK removes, NACK keeps available (cf. Q22, Q23, Q24) | as Q22-Q24
R54 | 3.1.4.15 | M | S | P | transactional ACK does not remove before commit; message not given to another receive before the outcome | returned to another receive with no plausible abort
R55 | 3.2.4.4.1, 3.2.4.4.2, 3.2.4.10.1, 3.2.4.10.2 | M | C | S | dwAck = 1 only if the packet could not be rebuilt | informational
R56 | 3.1.4.10 | M | C | S | phContextFrom opened by 2 with RECEIVE_ACCESS | otherwise
R57 | 3.1.4.10 | M | B | S | ullContextTo = a live pMoveContext of opnum 11, else 0xC00E0007 (3.2.4.6 says opnum 2, D7) | client; server MQ_OK
R58 | 3.1.4.10 | M | B | S | source and target: queue and its subqueue, or two subqueues of one queue; else 0xC000000D (compare format names with the ';sub' part removed) | client; server MQ_OK
R59 | 3.1.4.10, 3.2.4.6 | M | B | S | non-zero UOW and non-transactional target => 0xC00E0050; transactional target needs a UOW | MQ_OK
R60 | 3.1.4.10 | M | S | S | LookupId not in source => 0xC00E0088; message in another transaction => 0xC00E009C | MQ_OK
R61 | 3.1.4.10 | M | B | S | non-zero UOW was enlisted by opnum 12 on that server; else 0xC00E0051 | client; server MQ_OK
R62 | 3.1.4.11 | M | C | S | dwAccess = 0x04, dwShareMode = 0 | other
R63 | 3.1.4.11 | M | S | S | pMoveContext non-zero; usable as ullContextTo | zero
R64 | 3.1.4.12, 3.1.4.13 | M | C | S | UOW non-zero; token non-empty, cb = max_count, <= 131072; sent before 13/10 with that UOW | otherwise; 13/10 with a UOW never enlisted
R65 | 3.1.4.1 | S | B | S/H | GetServerPort non-zero, 2103 + 11k; only 2003 clients call it; ept_map miss for RemoteRead => client falls back to qm2qm | other value; Vista+ client calling it (informational)
R66 | 3.1.4.13 | M | S | S | zero UOW: behaves as opnum 7; non-zero UOW + peek class, or non-transactional queue => 0xC00E0050 | MQ_OK
R67 | 3.1.4.13 | M | C | S | peek class => zero UOW | non-zero
R68 | 3.1.4.14 | M | C | S | usClass in {0x0000, 0xC004} | other
R69 | 3.1.4.14 | M | C | S | sent after 13 and 15 for that LookupId, before the outcome | otherwise
R70 | 3.1.4.14 | M | S | S | LookupId unknown => 0xC00E0088; known but in no transaction => 0xC00E0050 | MQ_OK
R71 | 3.1.2.1 | M | C | H | 2, 11, 12 answered or cancelled within 300000 ms | longer
R72 | 3.1.5.1 | M | S | P | entry not ended 5 min after the request (D3: count from the response) => implied NACK: End after that fails, message available again | MQ_OK on a late End (tolerate: registry, D3)
R73 | 3.1.6.2 | M | S | P | connection loss = cursors closed, queue closed, pending entries NACKed | ctx still usable
R74 | 3.1.4.2 | D | S | H | minimum auth level (table 4.6) | successful calls below the level (informational: registry)
R75 | 1.7 | D | C | H | Kerberos in a domain, NTLM otherwise (or SPNEGO carrying them) | none
R76 | 2.2.5.2 | M | S | P | ExtensionHeader: SQ = 1, EA = 1, HeaderSize 12, RemainingHeadersSize = sum of the following headers; DL = 1 iff DeadLetterHeader | otherwise (not from 2003)
R77 | 2.2.5.3, 2.2.5.5 | M | S | P | SubqueueHeader.ATM = 0, names NUL padded; AddressType in {0, 1, 6}; AddressScope 0 unless type 6 | otherwise
R78 | method | D | S | H | 2003 server: opnums 10..15 => fault 0x1C010002 | response
M01 | 2.2.1.2 | M | C | S | type in {1, 2, 3}, tag = type | other
M02 | 3.1.4.1 | M | C | S | 1 <= cp <= 128, aProp count = apVar count = cp | otherwise (server must fault 0x6F7)
M03 | 3.1.4.1 | M | C | S | every request apVar is VT_NULL | other vt
M04 | 3.1.4.1 | M | C | S | aProp ids: machine 1..6, queue 1..27 | other id
M05 | 3.1.4.1 | M/MAY | S | S | foreign id for the object type: MAY fail 0xC00E0039 (2003+ do) | MQ_OK with a value for it
M06 | 3.1.4.1, 3.1.4.2 | M | S | S | MGMT_SESSION fails (0xC00E0006; NT/2000 0xC00E0001) | MQ_OK
M07 | 3.1.4.1 | M | S | S | MQ_OK: response apVar count = cp, each vt as table 4.8; VT_NULL allowed for DSSERVER (note 14) and where the table's condition does not hold (outgoing-only properties on a local queue) | other vt
M08 | 3.1.4.1 | M | S | S | string values inside the domain of table 4.8 | other string
M09 | 3.1.4.1 | M | S | S | failure: out parameters not set (all still VT_NULL) | values present
M10 | 3.1.4.1 | M | S | S | machine request returns only machine properties, queue request only queue properties | - (M04/M07)
M11 | 3.1.4.2 | M | C | S | lpwszAction (case-insensitive) in CONNECT, DISCONNECT, TIDY, PAUSE, RESUME, EOD_RESEND; NUL terminated | other
M12 | 3.1.4.2 | M | S | S | unknown action fails (0xC00E0006; NT/2000 0xC00E0001) | MQ_OK
M13 | 3.1.4.2 | D | C | S | machine actions with type 1, queue actions with type 2 | crossed; server MQ_OK on crossed
M14 | 3.1.4.2 | D | S | S | PAUSE / RESUME only for outgoing queues | MQ_OK for a queue known local (soft)
M15 | 3.1.4.1, 3.1.4.2 | M | C | H | call goes to a dynamic endpoint from the endpoint mapper | port neither learnt from ept_map nor known (soft)
M16 | 3.1.4.1 | S | S | S | queue not openable => failure | MQ_OK for a queue known absent
M17 | 3.1.4.2, 3.1.4.1 | D | S | S | coherence: after PAUSE OK state is ONHOLD until RESUME; after DISCONNECT OK CONNECTED property = DISCONNECTED until CONNECT; LOCATION LOCAL <=> STATE "LOCAL CONNECTION" | contradiction
M18 | 6 | M | B | S | cElems / cbSize = max_count of the pointee; BLOBs of EOD properties are 16 octets | otherwise
M19 | 2.2.3.2 | D | S | S | property 24 not from NT/2000; 25..27 only Vista/2008+ | value returned by an older server (version inference)
M20 | 3.2.4 | M | C | - | client passes results on unmodified | not visible
M21 | 3, 5.1 | D | S | S | R_QMMgmtAction needs administrator privileges, checked by the caller's identity: unauthenticated actions fail | MQ_OK for an action without authentication
C01 | 3.1.4.2 | M | C | S | R_QMOpenRemoteQueue: pQueueFormat non-NULL, m_qft not DL / MULTICAST, direct not HTTP(S); dwDesiredAccess in {1, 0x20}; dwShareMode in {0, 1} | otherwise; server MQ_OK
C02 | 3.1.4.2 | M | S | S | exclusive open held => 0xC0000043 (or 0xC00E0009, D18) | MQ_OK
C03 | 3.1.4.2 | S | S | S | pdwContext = phQueue; dwpQueue = phQueue on XP+ | differs
C04 | MQDMPR 3.1.1.16 | M | S | S | phQueue unique among live descriptors of the owner | duplicate live handle
C05 | 3.1.4.4 | M | B | S | R_QMCreateRemoteCursor with hQueue not live => failure | client; server MQ_OK
C06 | 3.2.4.7 | M | C | S | qmcomm 3 after the second qmcomm 19 (i.e. after qm2qm 2); exactly once | earlier, missing
C07 | 3.1.4.17 | M | C | S | hRemoteQueue 0 => dwpQueue 0, dwpRemoteContext 0; else all three from one qmcomm 2 response | mismatch
C08 | 3.1.4.17 | M | S | S | non-NULL name returned => phQueue NULL, pdwQMContext 0 | otherwise
C09 | 3.1.4.1 | S | S | H | R_QMGetRemoteQueueName: fault 0xC00E0064 (2003) / 5 (2008+); only NT/2000 answer | -
C10 | 3.1.4.24 | M | S | S | fIP in 0..3, otherwise 0; never access restricted; ports as Q52 | otherwise
C11 | 3.1.4.19 | M | S | S | rpc_ACCloseCursor with hCursor 0x0000000B is a no-op returning MQ_OK | other
C12 | 2.2.3.5 | M | C | S | OBJECT_FORMAT.ObjType = 1 on the wire | 2
C13 | 3.1.5.3 | M | S | S | rpc_ACReceiveMessageEx on a remote proxy with pUow => failure | MQ_OK
C14 | 3.2.4 | M | C | H | client calls R_QMQueryQMRegistryInternal before the other methods needing its strings | missing (soft)
T01 | MQQB 3.1.5.1.2 | M | B | P | where a packet ends, another one begins: version 0x10, signature LIOR, a possible size | bytes that are no packet
T02 | MQQB 2.2.1 | M | B | P | InternalHeader.Flags.PT in {1, 2, 3} | otherwise
T03 | MQQB 2.2.1 | M | B | P | SessionAck: CS = 0 | CS = 1
T04 | MQMQ 2.2.19.1 | M | B | P | TimeToReachQueue of an internal packet, an order ack or a final ack is 0xFFFFFFFF | otherwise
T05 | MQQB 2.2.2, MQQB 2.2.3, MQQB 2.2.6 | M | B | P | PacketSize: ConnectionParameters 32, EstablishConnection 572, SessionAck 36 | otherwise
T06 | MQQB 2.2.3.1 | M | B | P | EstablishConnection: RE = 0x10 | otherwise
T07 | MQQB 3.1.5.3.1 | M | S | P | the answer to EstablishConnection repeats ClientGuid, TimeStamp and SE | otherwise
T08 | MQQB 2.2.3.1 | M | S | P | the answer's padding is all 0x5A | otherwise
T09 | MQQB 3.1.5.3.1 | M | S | P | an answer with CS = 0 has the ServerGuid that was asked for, if that was not zero | another one
T10 | MQQB 3.1.5.4.1 | M | S | P | ConnectionParameters are answered with the same time-outs | otherwise
T11 | MQQB 2.2.2.1 | M | B | P | RecoverableAckTimeout in 500..120000 ms, AckTimeout in 20000..120000 ms | otherwise
T12 | MQQB 3.1.5.3, MQQB 3.1.5.4 | M | B | P | a side's first packet is EstablishConnection, its second ConnectionParameters; none of these later | otherwise
T13 | MQQB 3.1.5.3.2 | M | C | P | the client sends nothing after the server's refusal | a packet later than it
T14 | MQQB 3.1.5.5.5 | S | B | P | a SessionHeader's own counts are what its side had sent, 16 bits of it | otherwise
T15 | MQQB 3.1.1.6.1 | M | B | P | a SessionHeader acknowledges no more than the other side sent | AckSequenceNumber above all that it sent
T16 | MQQB 3.1.1.6.1 | M | B | P | AckSequenceNumber of a side never falls | (A - the one before) mod 65536 >= 32768
T17 | MQQB 3.1.7.1 | S | B | P | a side sends only while fewer packets than the window are unacknowledged | as many as the larger of both latest windows, or more
T18 | MQQB 3.1.6.3 | S | B | P | a side that is not acknowledged in time closes the connection | unacknowledged, not closed, nothing from the other side, for twice the time-out (by direct name four times) and 10 s
T19 | MQQB 2.2.4 | M | B | P | order ack: no BaseHeader.Flags but PR, SH; UserHeader AQ, RQ, TH, SH 0; Properties.Flags, BodyType 0; MessageSize 36; previous number = number - 1 | otherwise
T20 | MQQB 2.2.5 | M | B | P | final ack: as for order acks but for the previous number; DM = 1; a class that is defined | otherwise
T21 | MQQB 3.1.1.6.2 | S | B | P | order acks of a sequence never fall, from one address to another | a lower number than an earlier one
T22 | MQMQ 2.2.20.5 | M | S | P | TransactionHeader: TxSequenceNumber >= 1, PreviousTxSequenceNumber below it | TxSequenceNumber 0, or Previous not below it
T23 | MQQB 3.1.1.5 | M | B | P | sequences of a source for one queue only grow, from one address to another | a message first sent in a lower one than an earlier message
T24 | MQMQ 2.2.19.1 | M | S | P | priority 0 with a TransactionHeader | priority not 0
T25 | MQMQ 2.2.19.2 | M | S | P | UserHeader.Flags: MP = 1; DQ in {0, 3, 5, 7}; AQ in {0, 2, 3, 5, 6, 7}; TH only with DM = 1; RC <= 0x1D | otherwise
T26 | MQQB 3.1.7.1.2 | S | S | P | a message is discarded when SentTime + TimeToReachQueue is over | arrives in its queue more than 5 s after that
T27 | MQQB 3.1.7.15 | M | S | P | administration acknowledgement (class 0x0002, 0x4000, or bit 0x8000): TimeToReachQueue and TimeToBeReceived infinite; Properties.Flags, JN, JP, PrivacyLevel 0 | otherwise
T28 | MQQB 3.1.7.2.1 | S | B | P | an administration ack is one that its message asked for: 0x0002 by flag 1, 0x4000 by 2, 0x80.. by 4, 0xC0.. by 8 | one that it did not ask for
T29 | MQQB 3.1.1.3 | D | B | P | a number of a sequence is sent again 30 s after its last sending at the earliest | less than 25 s after it, on the same connection
T30 | MQMQ 2.2.19.1 | M | S | P | BaseHeader: VersionNumber 0x10, Signature LIOR, PacketSize = size of the packet without SessionHeader, <= 0x00400000 | otherwise
T31 | MQMQ 2.2.19.1 | M | S | P | BaseHeader.Flags: TR only with DH | TR without DH
T32 | MQMQ 2.2.19.2 | S | S | P | a message with Properties.Flags other than 0 names an administration queue (a MUST that Windows does not keep) | AQ = 0, and no MultiQueueFormatHeader
T33 | MQMQ 2.2.19.3 | M | S | P | PrivacyLevel in {0, 1, 3, 5}; EncryptionAlgorithm RC2 or RC4 at levels 1 and 3, AES at level 5 | otherwise (2 is read as 3: a warning)
K01 | 3.1.5, 2.2, 2.2.1, 2.2.2, 2.2.2.1, 2.2.3, 2.2.4, 2.2.5, 2.2.6 | M | C | P | the body of a message with the marker of COM+ queued components has the format of 2.2, otherwise servers reject it | otherwise
K02 | 2.2.4, 2.2.5 | S | C | P | a security header is sent for new security properties only: a reference for those of an earlier call, nothing for those of the call before | otherwise
K03 | 2.2.6 | S | C | P | no Interface ID in the header of a call on the interface of the call before | otherwise
K04 | 2.2.2.1 | S | C | P | the Target ID String is the text of the Target ID | otherwise
K05 | 2.1 | S | C | P | the queue's name is computer\\PRIVATE$\\application or computer\\application, with the lower-case name of the computer without its domain and the name of the COM+ application | otherwise
"""
