-- msmq.lua, the Message Queuing (MSMQ) dissector of msmq-lakehouse.
-- Made by tools/write_dissector.py. Install it with: msmq wireshark --install

-- What the decoders declare.
local declared = {}
declared.constants = {
  PACKET_VERSION = 16,
  PACKET_SIGNATURE = 1380927820,
  MAX_PACKET_BYTES = 4194304,
  BASE_FLAG_IN = 8,
  BASE_FLAG_SH = 16,
  BASE_FLAG_DH = 32,
  USER_FLAG_SH = 524288,
  USER_FLAG_TH = 1048576,
  USER_FLAG_MP = 2097152,
  USER_FLAG_CQ = 4194304,
  USER_FLAG_MQ = 8388608,
  USER_FLAG_AH = 33554432,
  USER_FLAG_HH = 268435456,
  TRANSACTION_FLAG_CG = 1,
  SECURITY_FLAG_EB = 32,
  EXTENSION_FLAG_SQ = 2,
  EXTENSION_FLAG_DL = 1,
  EXTENSION_FLAG_EA = 16,
  DIRECT_NAME_TYPE = 7,
  INFINITE_TIMEOUT = 4294967295,
  SENDER_TYPE_SID = 1,
  SENDER_TYPE_QUEUE_MANAGER = 2,
  SOAP_HEADER_ID = 800,
  SOAP_BODY_ID = 900,
  MULTI_QUEUE_SIGNATURE_ID = 350,
  SUBQUEUE_NAME_BYTES = 64,
  ADDRESS_TYPE_IPV4 = 1,
  ADDRESS_TYPE_IPV6 = 6,
  DEBUG_PUBLIC_QUEUE = 1,
  FORMAT_NAME_PUBLIC = 1,
  FORMAT_NAME_PRIVATE = 2,
  FORMAT_NAME_DIRECT = 3,
  FORMAT_NAME_DISTRIBUTION_LIST = 6,
  FORMAT_NAME_ALIGNMENT = 4,
  MIN_FORMAT_NAME_BYTES = 4,
  SECTION_FULL_PACKET = 0,
  SECTION_BINARY_FIRST = 1,
  SECTION_SRMP_FIRST = 3,
  PROTOCOL_REMOTE_READ = "RemoteRead",
  PROTOCOL_QM2QM = "qm2qm",
  PROTOCOL_BINARY = "binary_protocol",
  ESTABLISH_CONNECTION_BYTES = 572,
  CONNECTION_PARAMETERS_BYTES = 32,
  SESSION_ACK_BYTES = 36,
  PING_SIGNATURE = 21832,
  ESTABLISH_PADDING_AT = 60,
  MIN_STEP_BYTES = 12,
  MIN_SEARCH_BYTES = 20,
  CHECKED_HEADER_BYTES = 64,
  SESSION_ACK = 1,
  ESTABLISH_CONNECTION = 2,
  CONNECTION_PARAMETERS = 3,
  MIN_PACKET_BYTES = 16,
  MIN_MESSAGE_BYTES = 120,
  REQUEST = 0,
  RESPONSE = 2,
  FAULT = 3,
  BIND = 11,
  BIND_ACK = 12,
  BIND_NAK = 13,
  ALTER_CONTEXT = 14,
  ALTER_CONTEXT_RESP = 15,
  FIRST_FRAG = 1,
  LAST_FRAG = 2,
  OBJECT_UUID = 128,
  PDU_HEADER_BYTES = 16,
  NEGATIVE_CLASS_BIT = 32768,
  MQMSG_CLASS_REPORT = 1,
  MQMSG_CLASS_ORDER_ACK = 255,
  PING_PORT = 3527,
  BINARY_PROTOCOL_PORT = 1801,
  COMQC_EXTENSION = "\251\188\100\022\081\023\210\017\181\142\000\224\041\014\108\049",
}
declared.names = {
  class = {[0] = "MQMSG_CLASS_NORMAL", [1] = "MQMSG_CLASS_REPORT", [2] = "MQMSG_CLASS_ACK_REACH_QUEUE", [255] = "MQMSG_CLASS_ORDER_ACK", [16384] = "MQMSG_CLASS_ACK_RECEIVE", [32768] = "MQMSG_CLASS_NACK_BAD_DST_Q", [32769] = "MQMSG_CLASS_NACK_DELETED", [32770] = "MQMSG_CLASS_NACK_REACH_QUEUE_TIMEOUT", [32771] = "MQMSG_CLASS_NACK_Q_EXCEED_QUOTA", [32772] = "MQMSG_CLASS_NACK_ACCESS_DENIED", [32773] = "MQMSG_CLASS_NACK_HOP_COUNT_EXCEEDED", [32774] = "MQMSG_CLASS_NACK_BAD_SIGNATURE", [32775] = "MQMSG_CLASS_NACK_BAD_ENCRYPTION", [32776] = "MQMSG_CLASS_NACK_COULD_NOT_ENCRYPT", [32777] = "MQMSG_CLASS_NACK_NOT_TRANSACTIONAL_Q", [32778] = "MQMSG_CLASS_NACK_NOT_TRANSACTIONAL_MSG", [32779] = "MQMSG_CLASS_NACK_UNSUPPORTED_CRYPTO_PROVIDER", [32780] = "MQMSG_CLASS_NACK_SOURCE_COMPUTER_GUID_CHANGED", [49152] = "MQMSG_CLASS_NACK_Q_DELETED", [49153] = "MQMSG_CLASS_NACK_Q_PURGED", [49154] = "MQMSG_CLASS_NACK_RECEIVE_TIMEOUT", [49155] = "MQMSG_CLASS_NACK_RECEIVE_TIMEOUT_AT_SENDER", [49156] = "MQMSG_CLASS_NACK_RECEIVE_REJECTED"},
  hresult = {[0] = "MQ_OK", [5] = "ERROR_ACCESS_DENIED", [6] = "ERROR_INVALID_HANDLE", [8] = "ERROR_NOT_ENOUGH_MEMORY", [14] = "ERROR_OUTOFMEMORY", [50] = "ERROR_NOT_SUPPORTED", [87] = "ERROR_INVALID_PARAMETER", [1722] = "RPC_S_SERVER_UNAVAILABLE", [1723] = "RPC_S_SERVER_TOO_BUSY", [1726] = "RPC_S_CALL_FAILED", [1727] = "RPC_S_CALL_FAILED_DNE", [1728] = "RPC_S_PROTOCOL_ERROR", [1745] = "RPC_S_PROCNUM_OUT_OF_RANGE", [1753] = "EPT_S_NOT_REGISTERED", [1764] = "RPC_S_CANNOT_SUPPORT", [1783] = "RPC_X_BAD_STUB_DATA", [469762049] = "nca_s_fault_int_div_by_zero", [469762050] = "nca_s_fault_addr_error", [469762054] = "nca_s_fault_invalid_tag", [469762055] = "nca_s_fault_invalid_bound", [469762061] = "nca_s_fault_cancel", [469762066] = "nca_s_fault_unspec", [469762074] = "nca_s_fault_context_mismatch", [469762075] = "nca_s_fault_remote_no_memory", [469762076] = "nca_s_invalid_pres_context_id", [469762077] = "nca_s_unsupported_authn_level", [469827585] = "nca_s_comm_failure", [469827586] = "nca_s_op_rng_error", [469827587] = "nca_s_unk_if", [469827590] = "nca_s_wrong_boot_time", [469827593] = "nca_s_you_crashed", [469827595] = "nca_s_proto_error", [469827603] = "nca_s_out_args_too_big", [469827604] = "nca_s_server_too_busy", [469827607] = "nca_s_unsupported_type", [1074659329] = "MQ_INFORMATION_PROPERTY", [1074659330] = "MQ_INFORMATION_ILLEGAL_PROPERTY", [1074659331] = "MQ_INFORMATION_PROPERTY_IGNORED", [1074659332] = "MQ_INFORMATION_UNSUPPORTED_PROPERTY", [1074659333] = "MQ_INFORMATION_DUPLICATE_PROPERTY", [1074659334] = "MQ_INFORMATION_OPERATION_PENDING", [1074659337] = "MQ_INFORMATION_FORMATNAME_BUFFER_TOO_SMALL", [1074659338] = "MQ_INFORMATION_INTERNAL_USER_CERT_EXIST", [1074659339] = "MQ_INFORMATION_OWNER_IGNORED", [1074660328] = "MQ_INFORMATION_REMOTE_OPERATION", [1074660329] = "MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT", [2147614721] = "DISP_E_UNKNOWNINTERFACE", [2147614723] = "DISP_E_MEMBERNOTFOUND", [2147614724] = "DISP_E_PARAMNOTFOUND", [2147614725] = "DISP_E_TYPEMISMATCH", [2147614727] = "DISP_E_NONAMEDARGS", [2147614728] = "DISP_E_BADVARTYPE", [2147614729] = "DISP_E_EXCEPTION", [2147614730] = "DISP_E_OVERFLOW", [2147614734] = "DISP_E_BADPARAMCOUNT", [2147614735] = "DISP_E_PARAMNOTOPTIONAL", [3221225480] = "STATUS_INVALID_HANDLE", [3221225485] = "STATUS_INVALID_PARAMETER", [3221225506] = "STATUS_ACCESS_DENIED", [3221225539] = "STATUS_SHARING_VIOLATION", [3221226021] = "STATUS_NOT_FOUND", [3221226029] = "STATUS_RETRY", [3222142977] = "MQ_ERROR", [3222142978] = "MQ_ERROR_PROPERTY", [3222142979] = "MQ_ERROR_QUEUE_NOT_FOUND", [3222142980] = "MQ_ERROR_QUEUE_NOT_ACTIVE", [3222142981] = "MQ_ERROR_QUEUE_EXISTS", [3222142982] = "MQ_ERROR_INVALID_PARAMETER", [3222142983] = "MQ_ERROR_INVALID_HANDLE", [3222142984] = "MQ_ERROR_OPERATION_CANCELLED", [3222142985] = "MQ_ERROR_SHARING_VIOLATION", [3222142987] = "MQ_ERROR_SERVICE_NOT_AVAILABLE", [3222142989] = "MQ_ERROR_MACHINE_NOT_FOUND", [3222142992] = "MQ_ERROR_ILLEGAL_SORT", [3222142993] = "MQ_ERROR_ILLEGAL_USER", [3222142995] = "MQ_ERROR_NO_DS", [3222142996] = "MQ_ERROR_ILLEGAL_QUEUE_PATHNAME", [3222143000] = "MQ_ERROR_ILLEGAL_PROPERTY_VALUE", [3222143001] = "MQ_ERROR_ILLEGAL_PROPERTY_VT", [3222143002] = "MQ_ERROR_BUFFER_OVERFLOW", [3222143003] = "MQ_ERROR_IO_TIMEOUT", [3222143004] = "MQ_ERROR_ILLEGAL_CURSOR_ACTION", [3222143005] = "MQ_ERROR_MESSAGE_ALREADY_RECEIVED", [3222143006] = "MQ_ERROR_ILLEGAL_FORMATNAME", [3222143007] = "MQ_ERROR_FORMATNAME_BUFFER_TOO_SMALL", [3222143008] = "MQ_ERROR_UNSUPPORTED_FORMATNAME_OPERATION", [3222143009] = "MQ_ERROR_ILLEGAL_SECURITY_DESCRIPTOR", [3222143010] = "MQ_ERROR_SENDERID_BUFFER_TOO_SMALL", [3222143011] = "MQ_ERROR_SECURITY_DESCRIPTOR_TOO_SMALL", [3222143012] = "MQ_ERROR_CANNOT_IMPERSONATE_CLIENT", [3222143013] = "MQ_ERROR_ACCESS_DENIED", [3222143014] = "MQ_ERROR_PRIVILEGE_NOT_HELD", [3222143015] = "MQ_ERROR_INSUFFICIENT_RESOURCES", [3222143016] = "MQ_ERROR_USER_BUFFER_TOO_SMALL", [3222143018] = "MQ_ERROR_MESSAGE_STORAGE_FAILED", [3222143019] = "MQ_ERROR_SENDER_CERT_BUFFER_TOO_SMALL", [3222143020] = "MQ_ERROR_INVALID_CERTIFICATE", [3222143021] = "MQ_ERROR_CORRUPTED_INTERNAL_CERTIFICATE", [3222143022] = "MQ_ERROR_INTERNAL_USER_CERT_EXIST", [3222143023] = "MQ_ERROR_NO_INTERNAL_USER_CERT", [3222143024] = "MQ_ERROR_CORRUPTED_SECURITY_DATA", [3222143025] = "MQ_ERROR_CORRUPTED_PERSONAL_CERT_STORE", [3222143027] = "MQ_ERROR_COMPUTER_DOES_NOT_SUPPORT_ENCRYPTION", [3222143029] = "MQ_ERROR_BAD_SECURITY_CONTEXT", [3222143030] = "MQ_ERROR_COULD_NOT_GET_USER_SID", [3222143031] = "MQ_ERROR_COULD_NOT_GET_ACCOUNT_INFO", [3222143032] = "MQ_ERROR_ILLEGAL_MQCOLUMNS", [3222143033] = "MQ_ERROR_ILLEGAL_PROPID", [3222143034] = "MQ_ERROR_ILLEGAL_RELATION", [3222143035] = "MQ_ERROR_ILLEGAL_PROPERTY_SIZE", [3222143036] = "MQ_ERROR_ILLEGAL_RESTRICTION_PROPID", [3222143037] = "MQ_ERROR_ILLEGAL_MQQUEUEPROPS", [3222143038] = "MQ_ERROR_PROPERTY_NOTALLOWED", [3222143039] = "MQ_ERROR_INSUFFICIENT_PROPERTIES", [3222143040] = "MQ_ERROR_MACHINE_EXISTS", [3222143041] = "MQ_ERROR_ILLEGAL_MQQMPROPS", [3222143042] = "MQ_ERROR_DS_IS_FULL", [3222143043] = "MQ_ERROR_DS_ERROR", [3222143044] = "MQ_ERROR_INVALID_OWNER", [3222143045] = "MQ_ERROR_UNSUPPORTED_ACCESS_MODE", [3222143046] = "MQ_ERROR_RESULT_BUFFER_TOO_SMALL", [3222143048] = "MQ_ERROR_DELETE_CN_IN_USE", [3222143049] = "MQ_ERROR_NO_RESPONSE_FROM_OBJECT_SERVER", [3222143050] = "MQ_ERROR_OBJECT_SERVER_NOT_AVAILABLE", [3222143051] = "MQ_ERROR_QUEUE_NOT_AVAILABLE", [3222143052] = "MQ_ERROR_DTC_CONNECT", [3222143054] = "MQ_ERROR_TRANSACTION_IMPORT", [3222143056] = "MQ_ERROR_TRANSACTION_USAGE", [3222143057] = "MQ_ERROR_TRANSACTION_SEQUENCE", [3222143061] = "MQ_ERROR_MISSING_CONNECTOR_TYPE", [3222143062] = "MQ_ERROR_STALE_HANDLE", [3222143064] = "MQ_ERROR_TRANSACTION_ENLIST", [3222143066] = "MQ_ERROR_QUEUE_DELETED", [3222143067] = "MQ_ERROR_ILLEGAL_CONTEXT", [3222143068] = "MQ_ERROR_ILLEGAL_SORT_PROPID", [3222143069] = "MQ_ERROR_LABEL_TOO_LONG", [3222143070] = "MQ_ERROR_LABEL_BUFFER_TOO_SMALL", [3222143071] = "MQ_ERROR_MQIS_SERVER_EMPTY", [3222143072] = "MQ_ERROR_MQIS_READONLY_MODE", [3222143073] = "MQ_ERROR_SYMM_KEY_BUFFER_TOO_SMALL", [3222143074] = "MQ_ERROR_SIGNATURE_BUFFER_TOO_SMALL", [3222143075] = "MQ_ERROR_PROV_NAME_BUFFER_TOO_SMALL", [3222143076] = "MQ_ERROR_ILLEGAL_OPERATION", [3222143077] = "MQ_ERROR_WRITE_NOT_ALLOWED", [3222143078] = "MQ_ERROR_WKS_CANT_SERVE_CLIENT", [3222143079] = "MQ_ERROR_DEPEND_WKS_LICENSE_OVERFLOW", [3222143080] = "MQ_CORRUPTED_QUEUE_WAS_DELETED", [3222143081] = "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE", [3222143082] = "MQ_ERROR_UNSUPPORTED_OPERATION", [3222143083] = "MQ_ERROR_ENCRYPTION_PROVIDER_NOT_SUPPORTED", [3222143084] = "MQ_ERROR_CANNOT_SET_CRYPTO_SEC_DESCR", [3222143085] = "MQ_ERROR_CERTIFICATE_NOT_PROVIDED", [3222143086] = "MQ_ERROR_Q_DNS_PROPERTY_NOT_SUPPORTED", [3222143087] = "MQ_ERROR_CANNOT_CREATE_CERT_STORE", [3222143088] = "MQ_ERROR_CANNOT_OPEN_CERT_STORE", [3222143089] = "MQ_ERROR_ILLEGAL_ENTERPRISE_OPERATION", [3222143090] = "MQ_ERROR_CANNOT_GRANT_ADD_GUID", [3222143091] = "MQ_ERROR_CANNOT_LOAD_MSMQOCM", [3222143092] = "MQ_ERROR_NO_ENTRY_POINT_MSMQOCM", [3222143093] = "MQ_ERROR_NO_MSMQ_SERVERS_ON_DC", [3222143094] = "MQ_ERROR_CANNOT_JOIN_DOMAIN", [3222143095] = "MQ_ERROR_CANNOT_CREATE_ON_GC", [3222143096] = "MQ_ERROR_GUID_NOT_MATCHING", [3222143097] = "MQ_ERROR_PUBLIC_KEY_NOT_FOUND", [3222143098] = "MQ_ERROR_PUBLIC_KEY_DOES_NOT_EXIST", [3222143099] = "MQ_ERROR_ILLEGAL_MQPRIVATEPROPS", [3222143100] = "MQ_ERROR_NO_GC_IN_DOMAIN", [3222143101] = "MQ_ERROR_NO_MSMQ_SERVERS_ON_GC", [3222143102] = "MQ_ERROR_CANNOT_GET_DN", [3222143103] = "MQ_ERROR_CANNOT_HASH_DATA_EX", [3222143104] = "MQ_ERROR_CANNOT_SIGN_DATA_EX", [3222143105] = "MQ_ERROR_CANNOT_CREATE_HASH_EX", [3222143106] = "MQ_ERROR_FAIL_VERIFY_SIGNATURE_EX", [3222143107] = "MQ_ERROR_CANNOT_DELETE_PSC_OBJECTS", [3222143108] = "MQ_ERROR_NO_MQUSER_OU", [3222143109] = "MQ_ERROR_CANNOT_LOAD_MQAD", [3222143110] = "MQ_ERROR_CANNOT_LOAD_MQDSSRV", [3222143111] = "MQ_ERROR_PROPERTIES_CONFLICT", [3222143112] = "MQ_ERROR_MESSAGE_NOT_FOUND", [3222143113] = "MQ_ERROR_CANT_RESOLVE_SITES", [3222143114] = "MQ_ERROR_NOT_SUPPORTED_BY_DEPENDENT_CLIENTS", [3222143115] = "MQ_ERROR_OPERATION_NOT_SUPPORTED_BY_REMOTE_COMPUTER", [3222143116] = "MQ_ERROR_NOT_A_CORRECT_OBJECT_CLASS", [3222143117] = "MQ_ERROR_MULTI_SORT_KEYS", [3222143118] = "MQ_ERROR_GC_NEEDED", [3222143119] = "MQ_ERROR_DS_BIND_ROOT_FOREST", [3222143120] = "MQ_ERROR_DS_LOCAL_USER", [3222143121] = "MQ_ERROR_Q_ADS_PROPERTY_NOT_SUPPORTED", [3222143122] = "MQ_ERROR_BAD_XML_FORMAT", [3222143123] = "MQ_ERROR_UNSUPPORTED_CLASS", [3222143124] = "MQ_ERROR_UNINITIALIZED_OBJECT", [3222143125] = "MQ_ERROR_CANNOT_CREATE_PSC_OBJECTS", [3222143126] = "MQ_ERROR_CANNOT_UPDATE_PSC_OBJECTS", [3222143129] = "MQ_ERROR_RESOLVE_ADDRESS", [3222143130] = "MQ_ERROR_TOO_MANY_PROPERTIES", [3222143131] = "MQ_ERROR_MESSAGE_NOT_AUTHENTICATED", [3222143132] = "MQ_ERROR_MESSAGE_LOCKED_UNDER_TRANSACTION", [3222144260] = "MQDS_UNKNOWN_SOURCE"},
  fault_status = {[0] = "MQ_OK", [5] = "ERROR_ACCESS_DENIED", [6] = "ERROR_INVALID_HANDLE", [8] = "ERROR_NOT_ENOUGH_MEMORY", [14] = "ERROR_OUTOFMEMORY", [50] = "ERROR_NOT_SUPPORTED", [87] = "ERROR_INVALID_PARAMETER", [1722] = "RPC_S_SERVER_UNAVAILABLE", [1723] = "RPC_S_SERVER_TOO_BUSY", [1726] = "RPC_S_CALL_FAILED", [1727] = "RPC_S_CALL_FAILED_DNE", [1728] = "RPC_S_PROTOCOL_ERROR", [1745] = "RPC_S_PROCNUM_OUT_OF_RANGE", [1753] = "EPT_S_NOT_REGISTERED", [1764] = "RPC_S_CANNOT_SUPPORT", [1783] = "RPC_X_BAD_STUB_DATA", [469762049] = "nca_s_fault_int_div_by_zero", [469762050] = "nca_s_fault_addr_error", [469762054] = "nca_s_fault_invalid_tag", [469762055] = "nca_s_fault_invalid_bound", [469762061] = "nca_s_fault_cancel", [469762066] = "nca_s_fault_unspec", [469762074] = "nca_s_fault_context_mismatch", [469762075] = "nca_s_fault_remote_no_memory", [469762076] = "nca_s_invalid_pres_context_id", [469762077] = "nca_s_unsupported_authn_level", [469827585] = "nca_s_comm_failure", [469827586] = "nca_s_op_rng_error", [469827587] = "nca_s_unk_if", [469827590] = "nca_s_wrong_boot_time", [469827593] = "nca_s_you_crashed", [469827595] = "nca_s_proto_error", [469827603] = "nca_s_out_args_too_big", [469827604] = "nca_s_server_too_busy", [469827607] = "nca_s_unsupported_type", [1074659329] = "MQ_INFORMATION_PROPERTY", [1074659330] = "MQ_INFORMATION_ILLEGAL_PROPERTY", [1074659331] = "MQ_INFORMATION_PROPERTY_IGNORED", [1074659332] = "MQ_INFORMATION_UNSUPPORTED_PROPERTY", [1074659333] = "MQ_INFORMATION_DUPLICATE_PROPERTY", [1074659334] = "MQ_INFORMATION_OPERATION_PENDING", [1074659337] = "MQ_INFORMATION_FORMATNAME_BUFFER_TOO_SMALL", [1074659338] = "MQ_INFORMATION_INTERNAL_USER_CERT_EXIST", [1074659339] = "MQ_INFORMATION_OWNER_IGNORED", [1074660328] = "MQ_INFORMATION_REMOTE_OPERATION", [1074660329] = "MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT", [2147614721] = "DISP_E_UNKNOWNINTERFACE", [2147614723] = "DISP_E_MEMBERNOTFOUND", [2147614724] = "DISP_E_PARAMNOTFOUND", [2147614725] = "DISP_E_TYPEMISMATCH", [2147614727] = "DISP_E_NONAMEDARGS", [2147614728] = "DISP_E_BADVARTYPE", [2147614729] = "DISP_E_EXCEPTION", [2147614730] = "DISP_E_OVERFLOW", [2147614734] = "DISP_E_BADPARAMCOUNT", [2147614735] = "DISP_E_PARAMNOTOPTIONAL", [3221225480] = "STATUS_INVALID_HANDLE", [3221225485] = "STATUS_INVALID_PARAMETER", [3221225506] = "STATUS_ACCESS_DENIED", [3221225539] = "STATUS_SHARING_VIOLATION", [3221226021] = "STATUS_NOT_FOUND", [3221226029] = "STATUS_RETRY", [3222142977] = "MQ_ERROR", [3222142978] = "MQ_ERROR_PROPERTY", [3222142979] = "MQ_ERROR_QUEUE_NOT_FOUND", [3222142980] = "MQ_ERROR_QUEUE_NOT_ACTIVE", [3222142981] = "MQ_ERROR_QUEUE_EXISTS", [3222142982] = "MQ_ERROR_INVALID_PARAMETER", [3222142983] = "MQ_ERROR_INVALID_HANDLE", [3222142984] = "MQ_ERROR_OPERATION_CANCELLED", [3222142985] = "MQ_ERROR_SHARING_VIOLATION", [3222142987] = "MQ_ERROR_SERVICE_NOT_AVAILABLE", [3222142989] = "MQ_ERROR_MACHINE_NOT_FOUND", [3222142992] = "MQ_ERROR_ILLEGAL_SORT", [3222142993] = "MQ_ERROR_ILLEGAL_USER", [3222142995] = "MQ_ERROR_NO_DS", [3222142996] = "MQ_ERROR_ILLEGAL_QUEUE_PATHNAME", [3222143000] = "MQ_ERROR_ILLEGAL_PROPERTY_VALUE", [3222143001] = "MQ_ERROR_ILLEGAL_PROPERTY_VT", [3222143002] = "MQ_ERROR_BUFFER_OVERFLOW", [3222143003] = "MQ_ERROR_IO_TIMEOUT", [3222143004] = "MQ_ERROR_ILLEGAL_CURSOR_ACTION", [3222143005] = "MQ_ERROR_MESSAGE_ALREADY_RECEIVED", [3222143006] = "MQ_ERROR_ILLEGAL_FORMATNAME", [3222143007] = "MQ_ERROR_FORMATNAME_BUFFER_TOO_SMALL", [3222143008] = "MQ_ERROR_UNSUPPORTED_FORMATNAME_OPERATION", [3222143009] = "MQ_ERROR_ILLEGAL_SECURITY_DESCRIPTOR", [3222143010] = "MQ_ERROR_SENDERID_BUFFER_TOO_SMALL", [3222143011] = "MQ_ERROR_SECURITY_DESCRIPTOR_TOO_SMALL", [3222143012] = "MQ_ERROR_CANNOT_IMPERSONATE_CLIENT", [3222143013] = "MQ_ERROR_ACCESS_DENIED", [3222143014] = "MQ_ERROR_PRIVILEGE_NOT_HELD", [3222143015] = "MQ_ERROR_INSUFFICIENT_RESOURCES", [3222143016] = "MQ_ERROR_USER_BUFFER_TOO_SMALL", [3222143018] = "MQ_ERROR_MESSAGE_STORAGE_FAILED", [3222143019] = "MQ_ERROR_SENDER_CERT_BUFFER_TOO_SMALL", [3222143020] = "MQ_ERROR_INVALID_CERTIFICATE", [3222143021] = "MQ_ERROR_CORRUPTED_INTERNAL_CERTIFICATE", [3222143022] = "MQ_ERROR_INTERNAL_USER_CERT_EXIST", [3222143023] = "MQ_ERROR_NO_INTERNAL_USER_CERT", [3222143024] = "MQ_ERROR_CORRUPTED_SECURITY_DATA", [3222143025] = "MQ_ERROR_CORRUPTED_PERSONAL_CERT_STORE", [3222143027] = "MQ_ERROR_COMPUTER_DOES_NOT_SUPPORT_ENCRYPTION", [3222143029] = "MQ_ERROR_BAD_SECURITY_CONTEXT", [3222143030] = "MQ_ERROR_COULD_NOT_GET_USER_SID", [3222143031] = "MQ_ERROR_COULD_NOT_GET_ACCOUNT_INFO", [3222143032] = "MQ_ERROR_ILLEGAL_MQCOLUMNS", [3222143033] = "MQ_ERROR_ILLEGAL_PROPID", [3222143034] = "MQ_ERROR_ILLEGAL_RELATION", [3222143035] = "MQ_ERROR_ILLEGAL_PROPERTY_SIZE", [3222143036] = "MQ_ERROR_ILLEGAL_RESTRICTION_PROPID", [3222143037] = "MQ_ERROR_ILLEGAL_MQQUEUEPROPS", [3222143038] = "MQ_ERROR_PROPERTY_NOTALLOWED", [3222143039] = "MQ_ERROR_INSUFFICIENT_PROPERTIES", [3222143040] = "MQ_ERROR_MACHINE_EXISTS", [3222143041] = "MQ_ERROR_ILLEGAL_MQQMPROPS", [3222143042] = "MQ_ERROR_DS_IS_FULL", [3222143043] = "MQ_ERROR_DS_ERROR", [3222143044] = "MQ_ERROR_INVALID_OWNER", [3222143045] = "MQ_ERROR_UNSUPPORTED_ACCESS_MODE", [3222143046] = "MQ_ERROR_RESULT_BUFFER_TOO_SMALL", [3222143048] = "MQ_ERROR_DELETE_CN_IN_USE", [3222143049] = "MQ_ERROR_NO_RESPONSE_FROM_OBJECT_SERVER", [3222143050] = "MQ_ERROR_OBJECT_SERVER_NOT_AVAILABLE", [3222143051] = "MQ_ERROR_QUEUE_NOT_AVAILABLE", [3222143052] = "MQ_ERROR_DTC_CONNECT", [3222143054] = "MQ_ERROR_TRANSACTION_IMPORT", [3222143056] = "MQ_ERROR_TRANSACTION_USAGE", [3222143057] = "MQ_ERROR_TRANSACTION_SEQUENCE", [3222143061] = "MQ_ERROR_MISSING_CONNECTOR_TYPE", [3222143062] = "MQ_ERROR_STALE_HANDLE", [3222143064] = "MQ_ERROR_TRANSACTION_ENLIST", [3222143066] = "MQ_ERROR_QUEUE_DELETED", [3222143067] = "MQ_ERROR_ILLEGAL_CONTEXT", [3222143068] = "MQ_ERROR_ILLEGAL_SORT_PROPID", [3222143069] = "MQ_ERROR_LABEL_TOO_LONG", [3222143070] = "MQ_ERROR_LABEL_BUFFER_TOO_SMALL", [3222143071] = "MQ_ERROR_MQIS_SERVER_EMPTY", [3222143072] = "MQ_ERROR_MQIS_READONLY_MODE", [3222143073] = "MQ_ERROR_SYMM_KEY_BUFFER_TOO_SMALL", [3222143074] = "MQ_ERROR_SIGNATURE_BUFFER_TOO_SMALL", [3222143075] = "MQ_ERROR_PROV_NAME_BUFFER_TOO_SMALL", [3222143076] = "MQ_ERROR_ILLEGAL_OPERATION", [3222143077] = "MQ_ERROR_WRITE_NOT_ALLOWED", [3222143078] = "MQ_ERROR_WKS_CANT_SERVE_CLIENT", [3222143079] = "MQ_ERROR_DEPEND_WKS_LICENSE_OVERFLOW", [3222143080] = "MQ_CORRUPTED_QUEUE_WAS_DELETED", [3222143081] = "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE", [3222143082] = "MQ_ERROR_UNSUPPORTED_OPERATION", [3222143083] = "MQ_ERROR_ENCRYPTION_PROVIDER_NOT_SUPPORTED", [3222143084] = "MQ_ERROR_CANNOT_SET_CRYPTO_SEC_DESCR", [3222143085] = "MQ_ERROR_CERTIFICATE_NOT_PROVIDED", [3222143086] = "MQ_ERROR_Q_DNS_PROPERTY_NOT_SUPPORTED", [3222143087] = "MQ_ERROR_CANNOT_CREATE_CERT_STORE", [3222143088] = "MQ_ERROR_CANNOT_OPEN_CERT_STORE", [3222143089] = "MQ_ERROR_ILLEGAL_ENTERPRISE_OPERATION", [3222143090] = "MQ_ERROR_CANNOT_GRANT_ADD_GUID", [3222143091] = "MQ_ERROR_CANNOT_LOAD_MSMQOCM", [3222143092] = "MQ_ERROR_NO_ENTRY_POINT_MSMQOCM", [3222143093] = "MQ_ERROR_NO_MSMQ_SERVERS_ON_DC", [3222143094] = "MQ_ERROR_CANNOT_JOIN_DOMAIN", [3222143095] = "MQ_ERROR_CANNOT_CREATE_ON_GC", [3222143096] = "MQ_ERROR_GUID_NOT_MATCHING", [3222143097] = "MQ_ERROR_PUBLIC_KEY_NOT_FOUND", [3222143098] = "MQ_ERROR_PUBLIC_KEY_DOES_NOT_EXIST", [3222143099] = "MQ_ERROR_ILLEGAL_MQPRIVATEPROPS", [3222143100] = "MQ_ERROR_NO_GC_IN_DOMAIN", [3222143101] = "MQ_ERROR_NO_MSMQ_SERVERS_ON_GC", [3222143102] = "MQ_ERROR_CANNOT_GET_DN", [3222143103] = "MQ_ERROR_CANNOT_HASH_DATA_EX", [3222143104] = "MQ_ERROR_CANNOT_SIGN_DATA_EX", [3222143105] = "MQ_ERROR_CANNOT_CREATE_HASH_EX", [3222143106] = "MQ_ERROR_FAIL_VERIFY_SIGNATURE_EX", [3222143107] = "MQ_ERROR_CANNOT_DELETE_PSC_OBJECTS", [3222143108] = "MQ_ERROR_NO_MQUSER_OU", [3222143109] = "MQ_ERROR_CANNOT_LOAD_MQAD", [3222143110] = "MQ_ERROR_CANNOT_LOAD_MQDSSRV", [3222143111] = "MQ_ERROR_PROPERTIES_CONFLICT", [3222143112] = "MQ_ERROR_MESSAGE_NOT_FOUND", [3222143113] = "MQ_ERROR_CANT_RESOLVE_SITES", [3222143114] = "MQ_ERROR_NOT_SUPPORTED_BY_DEPENDENT_CLIENTS", [3222143115] = "MQ_ERROR_OPERATION_NOT_SUPPORTED_BY_REMOTE_COMPUTER", [3222143116] = "MQ_ERROR_NOT_A_CORRECT_OBJECT_CLASS", [3222143117] = "MQ_ERROR_MULTI_SORT_KEYS", [3222143118] = "MQ_ERROR_GC_NEEDED", [3222143119] = "MQ_ERROR_DS_BIND_ROOT_FOREST", [3222143120] = "MQ_ERROR_DS_LOCAL_USER", [3222143121] = "MQ_ERROR_Q_ADS_PROPERTY_NOT_SUPPORTED", [3222143122] = "MQ_ERROR_BAD_XML_FORMAT", [3222143123] = "MQ_ERROR_UNSUPPORTED_CLASS", [3222143124] = "MQ_ERROR_UNINITIALIZED_OBJECT", [3222143125] = "MQ_ERROR_CANNOT_CREATE_PSC_OBJECTS", [3222143126] = "MQ_ERROR_CANNOT_UPDATE_PSC_OBJECTS", [3222143129] = "MQ_ERROR_RESOLVE_ADDRESS", [3222143130] = "MQ_ERROR_TOO_MANY_PROPERTIES", [3222143131] = "MQ_ERROR_MESSAGE_NOT_AUTHENTICATED", [3222143132] = "MQ_ERROR_MESSAGE_LOCKED_UNDER_TRANSACTION", [3222144260] = "MQDS_UNKNOWN_SOURCE"},
  action = {[0] = "MQ_ACTION_RECEIVE", [2147483648] = "MQ_ACTION_PEEK_CURRENT", [2147483649] = "MQ_ACTION_PEEK_NEXT", [1073741840] = "MQ_LOOKUP_PEEK_CURRENT", [1073741841] = "MQ_LOOKUP_PEEK_NEXT", [1073741842] = "MQ_LOOKUP_PEEK_PREV", [1073741856] = "MQ_LOOKUP_RECEIVE_CURRENT", [1073741857] = "MQ_LOOKUP_RECEIVE_NEXT", [1073741858] = "MQ_LOOKUP_RECEIVE_PREV"},
  ack = {[0] = "RR_UNKNOWN", [1] = "RR_NACK", [2] = "RR_ACK"},
  share_mode = {[0] = "MQ_DENY_NONE", [1] = "MQ_DENY_SHARE"},
  ["internal.packet_type"] = {[0] = "unknown", [1] = "session_ack", [2] = "establish_connection", [3] = "connection_parameters"},
}
declared.acknowledgement_classes = {
  [16384] = true,
  [32768] = true,
  [32769] = true,
  [32770] = true,
  [32771] = true,
  [32772] = true,
  [32773] = true,
  [32774] = true,
  [32775] = true,
  [32776] = true,
  [32777] = true,
  [32778] = true,
  [32779] = true,
  [32780] = true,
  [49152] = true,
  [49153] = true,
  [49154] = true,
  [49155] = true,
  [49156] = true,
}
declared.positive_acknowledgements = {
  [2] = true,
  [16384] = true,
}
declared.queue_names = {
  {name = "DestinationQueue", flag = "DQ", shift = 10, allowed = {[0] = true, [3] = true, [5] = true, [7] = true}},
  {name = "AdminQueue", flag = "AQ", shift = 13, allowed = {[0] = true, [2] = true, [3] = true, [5] = true, [6] = true, [7] = true}},
  {name = "ResponseQueue", flag = "RQ", shift = 16, allowed = {[0] = true, [1] = true, [2] = true, [3] = true, [4] = true, [5] = true, [6] = true, [7] = true}},
}
declared.queue_name_bytes = {
  [0] = 0,
  [1] = 0,
  [2] = 4,
  [3] = 4,
  [4] = 4,
  [5] = 16,
  [6] = 20,
  [7] = 2,
}
declared.security_items = {
  {"SecurityID", "SenderIdSize"},
  {"EncryptionKey", "EncryptionKeySize"},
  {"Signature", "SignatureSize"},
  {"SenderCert", "SenderCertSize"},
  {"ProviderInfo", "ProviderInfoSize"},
}
declared.format_name_lists = {
  {"Destination", 100},
  {"Administration", 200},
  {"Response", 300},
}
declared.object_types = {
  [1] = "machine",
  [2] = "queue",
  [3] = "session",
}
declared.queue_suffixes = {
  [1] = ";JOURNAL",
  [2] = ";DEADLETTER",
  [3] = ";DEADXACT",
  [4] = ";XACTONLY",
}
declared.queue_kinds = {
  [1] = "PUBLIC",
  [2] = "PRIVATE",
  [4] = "MACHINE",
  [5] = "CONNECTOR",
  [6] = "DL",
}
declared.queue_format_arms = {
  [0] = {members = {}, text = false},
  [1] = {members = {{name = "m_gPublicID", type = "guid"}}, text = false},
  [2] = {members = {{name = "m_oPrivateID.Lineage", type = "guid"}, {name = "m_oPrivateID.Uniquifier", type = "u32"}}, text = false},
  [3] = {members = {}, text = true},
  [4] = {members = {{name = "m_gMachineID", type = "guid"}}, text = false},
  [5] = {members = {{name = "m_GConnectorID", type = "guid"}}, text = false},
  [6] = {members = {{name = "m_DlID.m_DlGuid", type = "guid"}}, text = true},
  [7] = {members = {{name = "m_MulticastID.m_address", type = "u32"}, {name = "m_MulticastID.m_port", type = "u32"}}, text = false},
  [8] = {members = {}, text = true},
}
declared.transfer_syntaxes = {
  ["8a885d04-1ceb-11c9-9fe8-08002b104860"] = "NDR",
  ["71710533-beba-4937-8319-b5dbef9ccc36"] = "NDR64",
}
declared.headers = {
  BaseHeader = {size = 16, fields = {{name = "VersionNumber", abbr = "msmq.version", at = 0, size = 1}, {name = "Reserved", abbr = "msmq.base.reserved", at = 1, size = 1}, {name = "Flags", abbr = "msmq.flags", at = 2, size = 2, bits = {"msmq.priority", "msmq.traced", "msmq.base.flags.in", "msmq.base.flags.sh", "msmq.base.flags.dh"}}, {name = "Signature", abbr = "msmq.base.signature", at = 4, size = 4}, {name = "PacketSize", abbr = "msmq.packet_size", at = 8, size = 4}, {name = "TimeToReachQueue", abbr = "msmq.base.time_to_reach_queue", at = 12, size = 4}}},
  UserHeader = {size = 48, fields = {{name = "SourceQueueManager", abbr = "msmq.source_queue_manager", at = 0, size = 16}, {name = "QueueManagerAddress", abbr = "msmq.user.queue_manager_address", at = 16, size = 16}, {name = "TimeToBeReceived", abbr = "msmq.user.time_to_be_received", at = 32, size = 4}, {name = "SentTime", abbr = "msmq.sent_at", at = 36, size = 4}, {name = "MessageID", abbr = "msmq.message_ordinal", at = 40, size = 4}, {name = "Flags", abbr = "msmq.user.flags", at = 44, size = 4, bits = {"msmq.hop_count", "msmq.journaling", "msmq.admin_queue_type", "msmq.transactional", "msmq.user.flags.sh", "msmq.user.flags.mp", "msmq.user.flags.cq", "msmq.user.flags.mq", "msmq.user.flags.ah", "msmq.user.flags.hh"}}}},
  TransactionHeader = {size = 20, fields = {{name = "Flags", abbr = "msmq.transaction.flags", at = 0, size = 4, bits = {"msmq.transaction_index", "msmq.final_acknowledgement_requested", "msmq.first_in_transaction", "msmq.last_in_transaction", "msmq.transaction.flags.cg"}}, {name = "TxSequenceID", abbr = "msmq.transaction_sequence_id", at = 4, size = 8}, {name = "TxSequenceNumber", abbr = "msmq.transaction_number", at = 12, size = 4}, {name = "PreviousTxSequenceNumber", abbr = "msmq.previous_transaction_number", at = 16, size = 4}}},
  SecurityHeader = {size = 16, fields = {{name = "Flags", abbr = "msmq.security.flags", at = 0, size = 2, bits = {"msmq.authenticated", "msmq.encrypted"}}, {name = "SenderIdSize", abbr = "msmq.security.sender_id_size", at = 2, size = 2}, {name = "EncryptionKeySize", abbr = "msmq.security.encryption_key_size", at = 4, size = 2}, {name = "SignatureSize", abbr = "msmq.security.signature_size", at = 6, size = 2, is_set = "msmq.signed"}, {name = "SenderCertSize", abbr = "msmq.sender_certificate_bytes", at = 8, size = 4}, {name = "ProviderInfoSize", abbr = "msmq.security.provider_info_size", at = 12, size = 4}}},
  MessagePropertiesHeader = {size = 56, fields = {{name = "Flags", abbr = "msmq.message_properties.flags", at = 0, size = 1, bits = {"msmq.acknowledgement_requested"}}, {name = "LabelLength", abbr = "msmq.message_properties.label_length", at = 1, size = 1}, {name = "MessageClass", abbr = "msmq.class", at = 2, size = 2}, {name = "CorrelationID", abbr = "msmq.message_properties.correlation_id", at = 4, size = 20}, {name = "BodyType", abbr = "msmq.body_type", at = 24, size = 4}, {name = "ApplicationTag", abbr = "msmq.app_specific", at = 28, size = 4}, {name = "MessageSize", abbr = "msmq.message_properties.message_size", at = 32, size = 4}, {name = "AllocationBodySize", abbr = "msmq.message_properties.allocation_body_size", at = 36, size = 4}, {name = "PrivacyLevel", abbr = "msmq.privacy_level", at = 40, size = 4}, {name = "HashAlgorithm", abbr = "msmq.hash_algorithm", at = 44, size = 4}, {name = "EncryptionAlgorithm", abbr = "msmq.encryption_algorithm", at = 48, size = 4}, {name = "ExtensionSize", abbr = "msmq.message_properties.extension_size", at = 52, size = 4}}},
  DebugHeader = {size = 4, fields = {{name = "Flags", abbr = "msmq.debug.flags", at = 0, size = 2}, {name = "Reserved", abbr = "msmq.debug.reserved", at = 2, size = 2}}},
  SRMPEnvelopeHeader = {size = 8, fields = {{name = "HeaderId", abbr = "msmq.srmp_envelope.header_id", at = 0, size = 2}, {name = "Reserved", abbr = "msmq.srmp_envelope.reserved", at = 2, size = 2}, {name = "DataLength", abbr = "msmq.srmp_envelope.data_length", at = 4, size = 4}}},
  CompoundMessageHeader = {size = 16, fields = {{name = "HeaderId", abbr = "msmq.compound_message.header_id", at = 0, size = 2}, {name = "Reserved", abbr = "msmq.compound_message.reserved", at = 2, size = 2}, {name = "HTTPBodySize", abbr = "msmq.compound_message.http_body_size", at = 4, size = 4}, {name = "MsgBodySize", abbr = "msmq.compound_message.msg_body_size", at = 8, size = 4}, {name = "MsgBodyOffset", abbr = "msmq.compound_message.msg_body_offset", at = 12, size = 4}}},
  SoapHeader = {size = 8, fields = {{name = "SectionID", abbr = "msmq.soap.section_id", at = 0, size = 2}, {name = "Reserved", abbr = "msmq.soap.reserved", at = 2, size = 2}, {name = "DataLength", abbr = "msmq.soap.data_length", at = 4, size = 4}}},
  FormatNameList = {size = 12, fields = {{name = "HeaderSize", abbr = "msmq.format_name_list.header_size", at = 0, size = 4}, {name = "HeaderID", abbr = "msmq.format_name_list.header_id", at = 4, size = 2}, {name = "Reserved", abbr = "msmq.format_name_list.reserved", at = 6, size = 2}, {name = "ElementCount", abbr = "msmq.format_name_list.element_count", at = 8, size = 4}}},
  MultiQueueSignature = {size = 8, fields = {{name = "ID", abbr = "msmq.multi_queue_signature.id", at = 0, size = 2}, {name = "Reserved", abbr = "msmq.multi_queue_signature.reserved", at = 2, size = 2}, {name = "Size", abbr = "msmq.multi_queue_signature.size", at = 4, size = 4}}},
  SessionHeader = {size = 16, fields = {{name = "AckSequenceNumber", abbr = "msmq.session_header.ack_sequence_number", at = 0, size = 2}, {name = "RecoverableMsgAckSeqNumber", abbr = "msmq.session_header.recoverable_ack_number", at = 2, size = 2}, {name = "RecoverableMsgAckFlags", abbr = "msmq.session_header.recoverable_ack_flags", at = 4, size = 4}, {name = "UserMsgSequenceNumber", abbr = "msmq.session_header.user_sequence_number", at = 8, size = 2}, {name = "RecoverableMsgSeqNumber", abbr = "msmq.session_header.recoverable_sequence_number", at = 10, size = 2}, {name = "WindowSize", abbr = "msmq.session_header.window_size", at = 12, size = 2}, {name = "Reserved", abbr = "msmq.session_header.reserved", at = 14, size = 2}}},
  ExtensionHeader = {size = 12, fields = {{name = "HeaderSize", abbr = "msmq.extension.header_size", at = 0, size = 4}, {name = "RemainingHeadersSize", abbr = "msmq.extension.remaining_headers_size", at = 4, size = 4}, {name = "Flags", abbr = "msmq.extension.flags", at = 8, size = 1, bits = {"msmq.extension.flags.dl", "msmq.extension.flags.sq", "msmq.extension.flags.di", "msmq.extension.flags.ea"}}, {name = "R", abbr = "msmq.extension.r", at = 9, size = 3}}},
  SubqueueHeader = {size = 20, fields = {{name = "HeaderSize", abbr = "msmq.subqueue.header_size", at = 0, size = 4}, {name = "Bits", abbr = "msmq.subqueue.bits", at = 4, size = 4}, {name = "AbortCounter", abbr = "msmq.abort_count", at = 8, size = 4}, {name = "MoveCounter", abbr = "msmq.move_count", at = 12, size = 4}, {name = "LastMoveTime", abbr = "msmq.subqueue.last_move_time", at = 16, size = 4}}},
  DeadLetterHeader = {size = 4, fields = {{name = "HeaderSize", abbr = "msmq.dead_letter.header_size", at = 0, size = 4}}},
  ExtendedAddressHeader = {size = 28, fields = {{name = "HeaderSize", abbr = "msmq.extended_address.header_size", at = 0, size = 4}, {name = "AddressLength", abbr = "msmq.extended_address.address_length", at = 4, size = 2}, {name = "AddressType", abbr = "msmq.extended_address.address_type", at = 6, size = 2}, {name = "AddressScope", abbr = "msmq.extended_address.address_scope", at = 8, size = 4}, {name = "Address", abbr = "msmq.extended_address.address", at = 12, size = 16}}},
  InternalHeader = {size = 4, fields = {{name = "Reserved", abbr = "msmq.internal.reserved", at = 0, size = 2}, {name = "Flags", abbr = "msmq.internal.flags", at = 2, size = 2}}},
  EstablishConnectionHeader = {size = 40, fields = {{name = "ClientGuid", abbr = "msmq.establish_connection.client_guid", at = 0, size = 16}, {name = "ServerGuid", abbr = "msmq.establish_connection.server_guid", at = 16, size = 16}, {name = "TimeStamp", abbr = "msmq.establish_connection.time_stamp", at = 32, size = 4}, {name = "OperatingSystem", abbr = "msmq.establish_connection.operating_system", at = 36, size = 2}, {name = "Reserved", abbr = "msmq.establish_connection.reserved", at = 38, size = 2}}},
  ConnectionParametersHeader = {size = 12, fields = {{name = "RecoverableAckTimeout", abbr = "msmq.connection_parameters.recoverable_ack_timeout", at = 0, size = 4}, {name = "AckTimeout", abbr = "msmq.connection_parameters.ack_timeout", at = 4, size = 4}, {name = "Reserved", abbr = "msmq.connection_parameters.reserved", at = 8, size = 2}, {name = "WindowSize", abbr = "msmq.connection_parameters.window_size", at = 10, size = 2}}},
  AcknowledgedSequence = {size = 16, fields = {{name = "TxSequenceID", abbr = "msmq.transaction_sequence_id", at = 0, size = 8}, {name = "TxSequenceNumber", abbr = "msmq.transaction_number", at = 8, size = 4}, {name = "TxPreviousSequenceNumber", abbr = "msmq.previous_transaction_number", at = 12, size = 4}}},
  AcknowledgedMessage = {size = 20, fields = {{name = "SourceGUID", abbr = "msmq.acknowledged_message.source_guid", at = 0, size = 16}, {name = "MessageID", abbr = "msmq.acknowledged_ordinal", at = 16, size = 4}}},
  Ping = {size = 24, fields = {{name = "Flags", abbr = "msmq.ping.flags", at = 0, size = 2, bits = {"msmq.ping.flags.rc", "msmq.ping.flags.rf"}}, {name = "Signature", abbr = "msmq.ping.signature", at = 2, size = 2}, {name = "Cookie", abbr = "msmq.ping.cookie", at = 4, size = 4}, {name = "QMGuid", abbr = "msmq.ping.qm_guid", at = 8, size = 16}}},
}
declared.read_desc_members = {
  {name = "hRemoteQueue", type = "u32", abbr = "msmq.queue_handle"},
  {name = "hCursor", type = "u32", abbr = "msmq.cursor_handle"},
  {name = "ulAction", type = "u32", abbr = "msmq.action"},
  {name = "ulTimeout", type = "u32", abbr = "msmq.timeout_ms"},
  {name = "dwSize", type = "u32", abbr = "msmq.parameter.dw_size"},
  {name = "dwQueue", type = "u32", abbr = "msmq.queue_descriptor"},
  {name = "dwRequestID", type = "u32", abbr = "msmq.request_id"},
  {name = "Reserved", type = "u32", abbr = "msmq.parameter.reserved"},
  {name = "dwArriveTime", type = "u32", abbr = "msmq.arrive_time"},
  {name = "eAckNack", type = "enum", abbr = "msmq.parameter.e_ack_nack"},
}
declared.interfaces = {
  ["1088a980-eae5-11d0-8d9b-00a02453c337"] = {name = "qm2qm", methods = {[0] = {name = "RemoteQMStartReceive", request = {{name = "pRemoteReadDesc", type = "read_desc"}}, response = {{name = "pphContext", type = "context", abbr = "msmq.remote_read_handle"}, {name = "pRemoteReadDesc", type = "read_desc"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [1] = {name = "RemoteQMEndReceive", request = {{name = "pphContext", type = "context", abbr = "msmq.remote_read_handle"}, {name = "dwAck", type = "u32", abbr = "msmq.ack"}}, response = {{name = "pphContext", type = "context", abbr = "msmq.parameter.pph_context"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [2] = {name = "RemoteQMOpenQueue", request = {{name = "pLicGuid", type = "guid", abbr = "msmq.client_id"}, {name = "dwMQS", type = "u32", abbr = "msmq.mqs"}, {name = "hQueue", type = "u32", abbr = "msmq.queue_handle"}, {name = "pQueue", type = "u32", abbr = "msmq.queue_descriptor"}, {name = "dwpContext", type = "u32", abbr = "msmq.open_context"}}, response = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [3] = {name = "RemoteQMCloseQueue", request = {{name = "pphContext", type = "context", abbr = "msmq.context_handle"}}, response = {{name = "pphContext", type = "context", abbr = "msmq.parameter.pph_context"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [4] = {name = "RemoteQMCloseCursor", request = {{name = "hQueue", type = "u32", abbr = "msmq.queue_handle"}, {name = "hCursor", type = "u32", abbr = "msmq.cursor_handle"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [5] = {name = "RemoteQMCancelReceive", request = {{name = "hQueue", type = "u32", abbr = "msmq.queue_handle"}, {name = "pQueue", type = "u32", abbr = "msmq.queue_descriptor"}, {name = "dwRequestID", type = "u32", abbr = "msmq.request_id"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [6] = {name = "RemoteQMPurgeQueue", request = {{name = "hQueue", type = "u32", abbr = "msmq.queue_handle"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [7] = {name = "RemoteQMGetQMQMServerPort", request = {{name = "dwPortType", type = "u32", abbr = "msmq.port_type"}}, response = {{name = "return", type = "u32", abbr = "msmq.returned_port"}}}, [8] = {name = "RemoteQmGetVersion", request = {}, response = {{name = "pMajor", type = "u8", abbr = "msmq.version_major"}, {name = "pMinor", type = "u8", abbr = "msmq.version_minor"}, {name = "pBuildNumber", type = "u16", abbr = "msmq.build_number"}}}, [9] = {name = "RemoteQMStartReceive2", request = {{name = "pRemoteReadDesc2", type = "read_desc2"}}, response = {{name = "pphContext", type = "context", abbr = "msmq.remote_read_handle"}, {name = "pRemoteReadDesc2", type = "read_desc2"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [10] = {name = "RemoteQMStartReceiveByLookupId", request = {{name = "LookupId", type = "u64", abbr = "msmq.lookup_id"}, {name = "pRemoteReadDesc2", type = "read_desc2"}}, response = {{name = "pphContext", type = "context", abbr = "msmq.remote_read_handle"}, {name = "pRemoteReadDesc2", type = "read_desc2"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}}},
  ["1a9134dd-7b39-45ba-ad88-44d01ca47f28"] = {name = "RemoteRead", methods = {[0] = {name = "R_GetServerPort", request = {}, response = {{name = "return", type = "u32", abbr = "msmq.returned_port"}}}, [1] = {name = "Opnum1NotUsedOnWire"}, [2] = {name = "R_OpenQueue", request = {{name = "pQueueFormat", type = "queue_format", is_queue = true}, {name = "dwAccess", type = "u32", abbr = "msmq.access"}, {name = "dwShareMode", type = "u32", abbr = "msmq.share_mode"}, {name = "pClientId", type = "guid", abbr = "msmq.client_id"}, {name = "fNonRoutingServer", type = "bool", abbr = "msmq.non_routing_server"}, {name = "Major", type = "u8", abbr = "msmq.version_major"}, {name = "Minor", type = "u8", abbr = "msmq.version_minor"}, {name = "BuildNumber", type = "u16", abbr = "msmq.build_number"}, {name = "fWorkgroup", type = "bool", abbr = "msmq.workgroup"}}, response = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}}}, [3] = {name = "R_CloseQueue", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}}, response = {{name = "pphContext", type = "context", abbr = "msmq.parameter.pph_context"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [4] = {name = "R_CreateCursor", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}}, response = {{name = "phCursor", type = "u32", abbr = "msmq.cursor_handle"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [5] = {name = "R_CloseCursor", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}, {name = "hCursor", type = "u32", abbr = "msmq.cursor_handle"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [6] = {name = "R_PurgeQueue", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [7] = {name = "R_StartReceive", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}, {name = "LookupId", type = "u64", abbr = "msmq.lookup_id"}, {name = "hCursor", type = "u32", abbr = "msmq.cursor_handle"}, {name = "ulAction", type = "u32", abbr = "msmq.action"}, {name = "ulTimeout", type = "u32", abbr = "msmq.timeout_ms"}, {name = "dwRequestId", type = "u32", abbr = "msmq.request_id"}, {name = "dwMaxBodySize", type = "u32", abbr = "msmq.max_body_bytes"}, {name = "dwMaxCompoundMessageSize", type = "u32", abbr = "msmq.max_compound_message_bytes"}}, response = {{name = "pdwArriveTime", type = "u32", abbr = "msmq.arrive_time"}, {name = "pSequenceId", type = "u64", abbr = "msmq.sequence_id"}, {name = "pdwNumberOfSections", type = "u32", abbr = "msmq.parameter.pdw_number_of_sections"}, {name = "ppPacketSections", type = "sections", size_is = "pdwNumberOfSections"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [8] = {name = "R_CancelReceive", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}, {name = "dwRequestId", type = "u32", abbr = "msmq.request_id"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [9] = {name = "R_EndReceive", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}, {name = "dwAck", type = "u32", abbr = "msmq.ack"}, {name = "dwRequestId", type = "u32", abbr = "msmq.request_id"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [10] = {name = "R_MoveMessage", request = {{name = "phContextFrom", type = "context", abbr = "msmq.context_handle"}, {name = "ullContextTo", type = "u64", abbr = "msmq.move_context"}, {name = "LookupId", type = "u64", abbr = "msmq.lookup_id"}, {name = "pTransactionId", type = "uow", abbr = "msmq.transaction_id"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [11] = {name = "R_OpenQueueForMove", request = {{name = "pQueueFormat", type = "queue_format", is_queue = true}, {name = "dwAccess", type = "u32", abbr = "msmq.access"}, {name = "dwShareMode", type = "u32", abbr = "msmq.share_mode"}, {name = "pClientId", type = "guid", abbr = "msmq.client_id"}, {name = "fNonRoutingServer", type = "bool", abbr = "msmq.non_routing_server"}, {name = "Major", type = "u8", abbr = "msmq.version_major"}, {name = "Minor", type = "u8", abbr = "msmq.version_minor"}, {name = "BuildNumber", type = "u16", abbr = "msmq.build_number"}, {name = "fWorkgroup", type = "bool", abbr = "msmq.workgroup"}}, response = {{name = "pMoveContext", type = "u64", abbr = "msmq.move_context"}, {name = "phContext", type = "context", abbr = "msmq.context_handle"}}}, [12] = {name = "R_QMEnlistRemoteTransaction", request = {{name = "pTransactionId", type = "uow", abbr = "msmq.transaction_id"}, {name = "cbPropagationToken", type = "u32", abbr = "msmq.propagation_token_bytes"}, {name = "pbPropagationToken", type = "octets", size_is = "cbPropagationToken"}, {name = "pQueueFormat", type = "queue_format"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [13] = {name = "R_StartTransactionalReceive", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}, {name = "LookupId", type = "u64", abbr = "msmq.lookup_id"}, {name = "hCursor", type = "u32", abbr = "msmq.cursor_handle"}, {name = "ulAction", type = "u32", abbr = "msmq.action"}, {name = "ulTimeout", type = "u32", abbr = "msmq.timeout_ms"}, {name = "dwRequestId", type = "u32", abbr = "msmq.request_id"}, {name = "dwMaxBodySize", type = "u32", abbr = "msmq.max_body_bytes"}, {name = "dwMaxCompoundMessageSize", type = "u32", abbr = "msmq.max_compound_message_bytes"}, {name = "pTransactionId", type = "uow", abbr = "msmq.transaction_id"}}, response = {{name = "pdwArriveTime", type = "u32", abbr = "msmq.arrive_time"}, {name = "pSequenceId", type = "u64", abbr = "msmq.sequence_id"}, {name = "pdwNumberOfSections", type = "u32", abbr = "msmq.parameter.pdw_number_of_sections"}, {name = "ppPacketSections", type = "sections", size_is = "pdwNumberOfSections"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [14] = {name = "R_SetUserAcknowledgementClass", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}, {name = "LookupId", type = "u64", abbr = "msmq.lookup_id"}, {name = "usClass", type = "u16", abbr = "msmq.acknowledgement_class"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [15] = {name = "R_EndTransactionalReceive", request = {{name = "phContext", type = "context", abbr = "msmq.context_handle"}, {name = "dwAck", type = "u32", abbr = "msmq.ack"}, {name = "dwRequestId", type = "u32", abbr = "msmq.request_id"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}}},
  ["41208ee0-e970-11d1-9b9e-00e02c064c39"] = {name = "qmmgmt", methods = {[0] = {name = "R_QMMgmtGetInfo", request = {{name = "pObjectFormat", type = "managed_object", is_queue = true}, {name = "cp", type = "u32", abbr = "msmq.parameter.cp"}, {name = "aProp", type = "numbers", size_is = "cp"}, {name = "apVar", type = "variants", size_is = "cp"}}, response = {{name = "apVar", type = "variants"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [1] = {name = "R_QMMgmtAction", request = {{name = "pObjectFormat", type = "managed_object", is_queue = true}, {name = "lpwszAction", type = "action"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}}},
  ["fdb3a030-065f-11d1-bb9b-00a024ea5525"] = {name = "qmcomm", methods = {[0] = {name = "Opnum0NotUsedOnWire"}, [1] = {name = "R_QMGetRemoteQueueName", request = {{name = "pQueue", type = "u32", abbr = "msmq.queue_descriptor"}, {name = "lplpRemoteQueueName", type = "name"}}, response = {{name = "lplpRemoteQueueName", type = "name"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [2] = {name = "R_QMOpenRemoteQueue", request = {{name = "pQueueFormat", type = "queue_format_pointer", is_queue = true}, {name = "dwCallingProcessID", type = "u32", abbr = "msmq.parameter.dw_calling_process_id"}, {name = "dwDesiredAccess", type = "u32", abbr = "msmq.access"}, {name = "dwShareMode", type = "u32", abbr = "msmq.share_mode"}, {name = "pLicGuid", type = "guid", abbr = "msmq.client_id"}, {name = "dwMQS", type = "u32", abbr = "msmq.mqs"}}, response = {{name = "pphContext", type = "context", abbr = "msmq.context_handle"}, {name = "pdwContext", type = "u32", abbr = "msmq.open_context"}, {name = "dwpQueue", type = "u32", abbr = "msmq.queue_descriptor"}, {name = "phQueue", type = "u32", abbr = "msmq.queue_handle"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [3] = {name = "R_QMCloseRemoteQueueContext", request = {{name = "pphContext", type = "context", abbr = "msmq.context_handle"}}, response = {{name = "pphContext", type = "context", abbr = "msmq.parameter.pph_context"}}}, [4] = {name = "R_QMCreateRemoteCursor", request = {{name = "ptb1", type = "transfer_1"}, {name = "hQueue", type = "u32", abbr = "msmq.queue_handle"}}, response = {{name = "phCursor", type = "u32", abbr = "msmq.cursor_handle"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [5] = {name = "Opnum5NotUsedOnWire"}, [6] = {name = "R_QMCreateObjectInternal", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [7] = {name = "R_QMSetObjectSecurityInternal", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [8] = {name = "R_QMGetObjectSecurityInternal", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [9] = {name = "R_QMDeleteObject", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [10] = {name = "R_QMGetObjectProperties", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [11] = {name = "R_QMSetObjectProperties", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [12] = {name = "R_QMObjectPathToObjectFormat", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [13] = {name = "Opnum13NotUsedOnWire"}, [14] = {name = "R_QMGetTmWhereabouts", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [15] = {name = "R_QMEnlistTransaction", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [16] = {name = "R_QMEnlistInternalTransaction", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [17] = {name = "R_QMCommitTransaction", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [18] = {name = "R_QMAbortTransaction", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [19] = {name = "rpc_QMOpenQueueInternal", request = {{name = "pQueueFormat", type = "queue_format", is_queue = true}, {name = "dwDesiredAccess", type = "u32", abbr = "msmq.access"}, {name = "dwShareMode", type = "u32", abbr = "msmq.share_mode"}, {name = "hRemoteQueue", type = "u32", abbr = "msmq.queue_handle"}, {name = "lplpRemoteQueueName", type = "name"}, {name = "dwpQueue", type = "u32", abbr = "msmq.queue_descriptor"}, {name = "pLicGuid", type = "guid", abbr = "msmq.client_id"}, {name = "lpClientName", type = "string"}, {name = "dwRemoteProtocol", type = "u32", abbr = "msmq.parameter.dw_remote_protocol"}, {name = "dwpRemoteContext", type = "u32", abbr = "msmq.open_context"}}, response = {{name = "lplpRemoteQueueName", type = "name"}, {name = "pdwQMContext", type = "u32", abbr = "msmq.queue_manager_context"}, {name = "phQueue", type = "context", abbr = "msmq.context_handle"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [20] = {name = "rpc_ACCloseHandle", request = {{name = "phQueue", type = "context", abbr = "msmq.context_handle"}}, response = {{name = "phQueue", type = "context", abbr = "msmq.parameter.ph_queue"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [21] = {name = "Opnum21NotUsedOnWire"}, [22] = {name = "rpc_ACCloseCursor", request = {{name = "hQueue", type = "context", abbr = "msmq.context_handle"}, {name = "hCursor", type = "u32", abbr = "msmq.cursor_handle"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [23] = {name = "rpc_ACSetCursorProperties", request = {{name = "hProxy", type = "context", abbr = "msmq.context_handle"}, {name = "hCursor", type = "u32", abbr = "msmq.cursor_handle"}, {name = "hRemoteCursor", type = "u32", abbr = "msmq.remote_cursor_handle"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [24] = {name = "Opnum24NotUsedOnWire"}, [25] = {name = "Opnum25NotUsedOnWire"}, [26] = {name = "rpc_ACHandleToFormatName", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [27] = {name = "rpc_ACPurgeQueue", request = {{name = "hQueue", type = "context", abbr = "msmq.context_handle"}}, response = {{name = "return", type = "u32", abbr = "msmq.hresult"}}}, [28] = {name = "R_QMQueryQMRegistryInternal", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [29] = {name = "Opnum29NotUsedOnWire"}, [30] = {name = "Opnum30NotUsedOnWire"}, [31] = {name = "R_QMGetRTQMServerPort", request = {{name = "fIP", type = "u32", abbr = "msmq.port_type"}}, response = {{name = "return", type = "u32", abbr = "msmq.returned_port"}}}, [32] = {name = "Opnum32NotUsedOnWire"}, [33] = {name = "Opnum33NotUsedOnWire"}, [34] = {name = "Opnum34NotUsedOnWire"}}},
  ["76d12b80-3467-11d3-91ff-0090272f9ea3"] = {name = "qmcomm2", methods = {[0] = {name = "QMSendMessageInternalEx", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [1] = {name = "rpc_ACSendMessageEx", request = {{name = "in", type = "rest"}}, response = {{name = "out", type = "rest"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [2] = {name = "rpc_ACReceiveMessageEx", request = {{name = "hQMContext", type = "u32", abbr = "msmq.queue_manager_context"}, {name = "ptb", type = "transfer_2"}}, response = {{name = "ptb", type = "transfer_2"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}, [3] = {name = "rpc_ACCreateCursorEx", request = {{name = "hQueue", type = "context", abbr = "msmq.context_handle"}, {name = "pcc.hCursor", type = "u32", abbr = "msmq.parameter.pcc_h_cursor"}, {name = "pcc.srv_hACQueue", type = "u32", abbr = "msmq.parameter.pcc_srv_h_ac_queue"}, {name = "pcc.cli_pQMQueue", type = "u32", abbr = "msmq.parameter.pcc_cli_p_qm_queue"}}, response = {{name = "pcc.hCursor", type = "u32", abbr = "msmq.cursor_handle"}, {name = "pcc.srv_hACQueue", type = "u32", abbr = "msmq.queue_handle"}, {name = "pcc.cli_pQMQueue", type = "u32", abbr = "msmq.queue_descriptor"}, {name = "return", type = "u32", abbr = "msmq.hresult"}}}}},
}
declared.fields = {
  {abbr = "msmq.message_id", type = "string", label = "message id", text = "guid\\ordinal of both"},
  {abbr = "msmq.queue_manager_address", type = "string", label = "queue manager address", text = "QueueManagerAddress: GUID of the destination's queue manager, with RemoteRead of the host it came from; null when zero, or when RemoteRead has sender_address there"},
  {abbr = "msmq.destination_queue_manager", type = "string", label = "destination queue manager", text = "QueueManagerAddress, GUID of the destination's queue manager; null when zero, and for RPC"},
  {abbr = "msmq.correlation_id", type = "string", label = "correlation id", text = "guid\\ordinal, of an acknowledgement the message_id; null when all zero"},
  {abbr = "msmq.message_kind", type = "string", label = "message kind", text = "report (class 0x0001), administration_ack (0x0002, 0x4000, bit 0x8000), application"},
  {abbr = "msmq.class_name", type = "string", label = "class name", text = "name of class; 0x and hex when unknown"},
  {abbr = "msmq.delivery", type = "string", label = "delivery", text = "express, recoverable; null for a mode that is not defined"},
  {abbr = "msmq.label", type = "string", label = "label", text = "the label to its first NUL; null without one"},
  {abbr = "msmq.body_bytes", type = "uint32", label = "body bytes", text = "declared size of the whole body, bytes: MessageSize, for SRMP MsgBodySize"},
  {abbr = "msmq.body_bytes_seen", type = "uint32", label = "body bytes seen", text = "bytes of the body that were seen"},
  {abbr = "msmq.body", type = "bytes", label = "body", text = "the bytes seen; only with store.bodies"},
  {abbr = "msmq.body_complete", type = "bool", label = "body complete", text = "the whole body was seen; false without an error: the reader's limit cut it"},
  {abbr = "msmq.extension", type = "bytes", label = "extension", text = "ExtensionData; null when empty"},
  {abbr = "msmq.is_comqc", type = "bool", label = "is comqc", text = "the extension carries the marker of a COM+ queued component"},
  {abbr = "msmq.destination_queue", type = "string", label = "destination queue", text = "normal form of the destination queue"},
  {abbr = "msmq.admin_queue", type = "string", label = "admin queue", text = "normal form of the administration queue, where acknowledgements go"},
  {abbr = "msmq.response_queue", type = "string", label = "response queue", text = "normal form of the response queue"},
  {abbr = "msmq.destination_list", type = "string", label = "destination list", text = "normal forms of all destinations; null when the packet has no lists"},
  {abbr = "msmq.admin_list", type = "string", label = "admin list", text = "normal forms of all administration queues; null when the packet has no lists"},
  {abbr = "msmq.response_list", type = "string", label = "response list", text = "normal forms of all response queues; null when the packet has no lists"},
  {abbr = "msmq.report_queue", type = "string", label = "report queue", text = "normal form of the queue for reports on its route, DebugHeader"},
  {abbr = "msmq.connector_type", type = "string", label = "connector type", text = "ConnectorType, GUID of the foreign messaging system; null without one"},
  {abbr = "msmq.connector_queue_manager", type = "string", label = "connector queue manager", text = "ConnectorQMGuid, GUID of the connector of a transactional message"},
  {abbr = "msmq.sender_id", type = "string", label = "sender id", text = "SID of the sender, S-1-..., or a queue manager's GUID"},
  {abbr = "msmq.sender_address", type = "string", label = "sender address", text = "IP address of the host it came from, as text"},
  {abbr = "msmq.soap_header", type = "string", label = "soap header", text = "text of the SOAP header, to its first NUL; null without one"},
  {abbr = "msmq.soap_body_bytes", type = "uint32", label = "soap body bytes", text = "size of the SOAP body in bytes, UTF-16 with its NUL; null without one"},
  {abbr = "msmq.subqueue", type = "string", label = "subqueue", text = "subqueue that it is in; null when in none"},
  {abbr = "msmq.target_subqueue", type = "string", label = "target subqueue", text = "target of a move whose transaction is open; null without one"},
  {abbr = "msmq.dead_letter_queue", type = "string", label = "dead letter queue", text = "normal form of the dead-letter queue that the sender asked for"},
  {abbr = "msmq.subqueue_acknowledgement_class", type = "uint32", label = "subqueue acknowledgement class", text = "AcknowledgementClass: 0, or the class that its reader set, such as a rejection; as found"},
  {abbr = "msmq.time_to_reach_queue_s", type = "uint32", label = "time to reach queue s", text = "seconds allowed from sent_at to its queue; null when infinite"},
  {abbr = "msmq.time_to_be_received_s", type = "uint32", label = "time to be received s", text = "seconds allowed until it is received; null when infinite"},
  {abbr = "msmq.is_srmp", type = "bool", label = "is srmp", text = "it came over HTTP: SOAP envelope and compound message (AH bit)"},
  {abbr = "msmq.session_number", type = "uint32", label = "session number", text = "its number among its side's counted packets, from 1; null if unknown, and for RPC"},
  {abbr = "msmq.recoverable_number", type = "uint32", label = "recoverable number", text = "its number among the recoverable ones of these; null likewise"},
  {abbr = "msmq.seen_in", type = "string", label = "seen in", text = "RemoteRead, qm2qm, binary_protocol"},
  {abbr = "msmq.acknowledged_message_id", type = "string", label = "acknowledged message id", text = "guid\\ordinal of the acknowledged message; null for order acks"},
  {abbr = "msmq.kind", type = "string", label = "kind", text = "establish_connection, connection_parameters, session_ack, unknown; order_ack, final_ack, user_message"},
  {abbr = "msmq.protocol", type = "string", label = "protocol", text = "qm2qm ([MS-MQQP]) or RemoteRead ([MS-MQRR])"},
  {abbr = "msmq.method", type = "string", label = "method", text = "the IDL's name of the operation; null when the opnum is not known"},
  {abbr = "msmq.opnum", type = "uint32", label = "opnum", text = "operation number"},
  {abbr = "msmq.call_id", type = "uint32", label = "call id", text = "call id of the PDUs"},
  {abbr = "msmq.queue_format_type", type = "uint32", label = "queue format type", text = "QUEUE_FORMAT.m_qft, the kind of format name"},
  {abbr = "msmq.queue_format_name", type = "string", label = "queue format name", text = "format name of the queue asked for, as text"},
  {abbr = "msmq.queue", type = "string", label = "queue", text = "normal form of the queue opened; R_OpenQueue and R_OpenQueueForMove alone"},
  {abbr = "msmq.action_name", type = "string", label = "action name", text = "name of action, MQ_ACTION_... or MQ_LOOKUP_...; 0x and hex when unknown"},
  {abbr = "msmq.ack_name", type = "string", label = "ack name", text = "RR_ACK, RR_NACK, RR_UNKNOWN; 0x and hex when unknown"},
  {abbr = "msmq.hresult_name", type = "string", label = "hresult name", text = "name of hresult; 0x and hex when unknown"},
  {abbr = "msmq.fault_name", type = "string", label = "fault name", text = "name of bronze.rpc_calls.fault_status, methods raise HRESULTs too; null without a fault"},
  {abbr = "msmq.packet_bytes", type = "uint32", label = "packet bytes", text = "bytes of the message packet that came back"},
  {abbr = "msmq.section_types", type = "uint32", label = "section types", text = "SectionType of each section that came back, in order"},
  {abbr = "msmq.section_bytes", type = "uint32", label = "section bytes", text = "bytes of each section that came back, in order"},
  {abbr = "msmq.section_allocated_bytes", type = "uint32", label = "section allocated bytes", text = "SectionSizeAlloc of each section, bytes, in order"},
  {abbr = "msmq.interface_name", type = "string", label = "interface name", text = "qmcomm or qmcomm2"},
  {abbr = "msmq.object_type", type = "string", label = "object type", text = "MGMT_OBJECT.type: machine, queue, session"},
  {abbr = "msmq.report.source_prefix", type = "string", label = "source prefix", text = ""},
  {abbr = "msmq.report.message_ordinal", type = "uint32", label = "message ordinal", text = ""},
  {abbr = "msmq.report.hop_count", type = "uint32", label = "hop count", text = ""},
  {abbr = "msmq.report.next_hop", type = "string", label = "next hop", text = ""},
  {abbr = "msmq.management_action", type = "string", label = "action", text = "lpwszAction of R_QMMgmtAction, as sent"},
  {abbr = "msmq.fault_status", type = "uint32", label = "fault status", text = "status of the fault PDU, unsigned; null without a fault", names = "fault_status", hex = true},
  {abbr = "msmq.version", type = "uint8", label = "version", text = "BaseHeader.VersionNumber"},
  {abbr = "msmq.base.reserved", type = "uint8", label = "Reserved", text = ""},
  {abbr = "msmq.flags", type = "uint16", label = "flags", text = "BaseHeader.Flags", hex = true},
  {abbr = "msmq.priority", type = "uint16", label = "priority", text = "0 to 7, 7 the highest; 0 for transactional messages", mask = 7, bits = 16},
  {abbr = "msmq.traced", type = "bool", label = "traced", text = "TR bit, reports on its route are asked for", mask = 256, bits = 16},
  {abbr = "msmq.base.flags.in", type = "bool", label = "IN", text = "", mask = 8, bits = 16},
  {abbr = "msmq.base.flags.sh", type = "bool", label = "SH", text = "", mask = 16, bits = 16},
  {abbr = "msmq.base.flags.dh", type = "bool", label = "DH", text = "", mask = 32, bits = 16},
  {abbr = "msmq.base.signature", type = "uint32", label = "Signature", text = "", hex = true},
  {abbr = "msmq.packet_size", type = "uint32", label = "packet size", text = "BaseHeader.PacketSize, bytes"},
  {abbr = "msmq.base.time_to_reach_queue", type = "uint32", label = "TimeToReachQueue", text = ""},
  {abbr = "msmq.source_queue_manager", type = "guid", label = "source queue manager", text = "GUID of the queue manager that first accepted the message"},
  {abbr = "msmq.user.queue_manager_address", type = "guid", label = "QueueManagerAddress", text = ""},
  {abbr = "msmq.user.time_to_be_received", type = "uint32", label = "TimeToBeReceived", text = ""},
  {abbr = "msmq.sent_at", type = "absolute_time", label = "sent at", text = "SentTime, when the sender sent it, UTC"},
  {abbr = "msmq.message_ordinal", type = "uint32", label = "message ordinal", text = "MessageID, a number that the source queue manager counts"},
  {abbr = "msmq.user.flags", type = "uint32", label = "Flags", text = "", hex = true},
  {abbr = "msmq.hop_count", type = "uint32", label = "hop count", text = "RC, the number of routing servers that it passed", mask = 31, bits = 32},
  {abbr = "msmq.journaling", type = "uint32", label = "journaling", text = "0 none, 1 dead letter, 2 journal, 3 both", mask = 768, bits = 32},
  {abbr = "msmq.admin_queue_type", type = "uint32", label = "admin queue type", text = "AQ, how the packet names the administration queue; 0: it names none", mask = 57344, bits = 32},
  {abbr = "msmq.transactional", type = "bool", label = "transactional", text = "it was sent in a transaction", mask = 1048576, bits = 32},
  {abbr = "msmq.user.flags.sh", type = "bool", label = "SH", text = "", mask = 524288, bits = 32},
  {abbr = "msmq.user.flags.mp", type = "bool", label = "MP", text = "", mask = 2097152, bits = 32},
  {abbr = "msmq.user.flags.cq", type = "bool", label = "CQ", text = "", mask = 4194304, bits = 32},
  {abbr = "msmq.user.flags.mq", type = "bool", label = "MQ", text = "", mask = 8388608, bits = 32},
  {abbr = "msmq.user.flags.ah", type = "bool", label = "AH", text = "", mask = 33554432, bits = 32},
  {abbr = "msmq.user.flags.hh", type = "bool", label = "HH", text = "", mask = 268435456, bits = 32},
  {abbr = "msmq.transaction.flags", type = "uint32", label = "Flags", text = "", hex = true},
  {abbr = "msmq.transaction_index", type = "uint32", label = "transaction index", text = "20-bit number of the transaction at its sender", mask = 16777200, bits = 32},
  {abbr = "msmq.final_acknowledgement_requested", type = "bool", label = "final acknowledgement requested", text = "it asks for a final acknowledgement (FA of the TransactionHeader); null when not transactional", mask = 2, bits = 32},
  {abbr = "msmq.first_in_transaction", type = "bool", label = "first in transaction", text = "the transaction's first message; null when not transactional", mask = 4, bits = 32},
  {abbr = "msmq.last_in_transaction", type = "bool", label = "last in transaction", text = "the transaction's last message; null when not transactional", mask = 8, bits = 32},
  {abbr = "msmq.transaction.flags.cg", type = "bool", label = "CG", text = "", mask = 1, bits = 32},
  {abbr = "msmq.transaction_sequence_id", type = "uint64", label = "transaction sequence id", text = "TxSequenceID of a transactional message"},
  {abbr = "msmq.transaction_number", type = "uint32", label = "transaction number", text = "TxSequenceNumber, the place in its sequence, from 1"},
  {abbr = "msmq.previous_transaction_number", type = "uint32", label = "previous transaction number", text = "PreviousTxSequenceNumber, 0 without one"},
  {abbr = "msmq.security.flags", type = "uint16", label = "Flags", text = "", hex = true},
  {abbr = "msmq.authenticated", type = "bool", label = "authenticated", text = "AU bit; false without a SecurityHeader", mask = 16, bits = 16},
  {abbr = "msmq.encrypted", type = "bool", label = "encrypted", text = "EB bit, the body is encrypted; false without a SecurityHeader", mask = 32, bits = 16},
  {abbr = "msmq.security.sender_id_size", type = "uint16", label = "SenderIdSize", text = ""},
  {abbr = "msmq.security.encryption_key_size", type = "uint16", label = "EncryptionKeySize", text = ""},
  {abbr = "msmq.security.signature_size", type = "uint16", label = "SignatureSize", text = ""},
  {abbr = "msmq.signed", type = "bool", label = "signed", text = "a signature is there; false without a SecurityHeader"},
  {abbr = "msmq.sender_certificate_bytes", type = "uint32", label = "sender certificate bytes", text = "size of the sender's certificate in bytes; 0 without one"},
  {abbr = "msmq.security.provider_info_size", type = "uint32", label = "ProviderInfoSize", text = ""},
  {abbr = "msmq.message_properties.flags", type = "uint8", label = "Flags", text = "", hex = true},
  {abbr = "msmq.acknowledgement_requested", type = "uint8", label = "acknowledgement requested", text = "acknowledgements asked for: 1 arrival, 2 receive, 4, 8 their lack", mask = 15, bits = 8},
  {abbr = "msmq.message_properties.label_length", type = "uint8", label = "LabelLength", text = ""},
  {abbr = "msmq.class", type = "uint16", label = "class", text = "MessageClass: an application's message, an acknowledgement, a report", names = "class", hex = true},
  {abbr = "msmq.message_properties.correlation_id", type = "bytes", label = "CorrelationID", text = ""},
  {abbr = "msmq.body_type", type = "uint32", label = "body type", text = "VT code of the body"},
  {abbr = "msmq.app_specific", type = "uint32", label = "app specific", text = "ApplicationTag, a number of the application's"},
  {abbr = "msmq.message_properties.message_size", type = "uint32", label = "MessageSize", text = ""},
  {abbr = "msmq.message_properties.allocation_body_size", type = "uint32", label = "AllocationBodySize", text = ""},
  {abbr = "msmq.privacy_level", type = "uint32", label = "privacy level", text = "PrivacyLevel: 0 none; body encrypted with 40 bits (1), 128 bits (3), AES (5)"},
  {abbr = "msmq.hash_algorithm", type = "uint32", label = "hash algorithm", text = "HashAlgorithm of the signature"},
  {abbr = "msmq.encryption_algorithm", type = "uint32", label = "encryption algorithm", text = "EncryptionAlgorithm, filled without encryption too"},
  {abbr = "msmq.message_properties.extension_size", type = "uint32", label = "ExtensionSize", text = ""},
  {abbr = "msmq.debug.flags", type = "uint16", label = "Flags", text = "", hex = true},
  {abbr = "msmq.debug.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.srmp_envelope.header_id", type = "uint16", label = "HeaderId", text = ""},
  {abbr = "msmq.srmp_envelope.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.srmp_envelope.data_length", type = "uint32", label = "DataLength", text = ""},
  {abbr = "msmq.compound_message.header_id", type = "uint16", label = "HeaderId", text = ""},
  {abbr = "msmq.compound_message.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.compound_message.http_body_size", type = "uint32", label = "HTTPBodySize", text = ""},
  {abbr = "msmq.compound_message.msg_body_size", type = "uint32", label = "MsgBodySize", text = ""},
  {abbr = "msmq.compound_message.msg_body_offset", type = "uint32", label = "MsgBodyOffset", text = ""},
  {abbr = "msmq.soap.section_id", type = "uint16", label = "SectionID", text = ""},
  {abbr = "msmq.soap.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.soap.data_length", type = "uint32", label = "DataLength", text = ""},
  {abbr = "msmq.format_name_list.header_size", type = "uint32", label = "HeaderSize", text = ""},
  {abbr = "msmq.format_name_list.header_id", type = "uint16", label = "HeaderID", text = ""},
  {abbr = "msmq.format_name_list.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.format_name_list.element_count", type = "uint32", label = "ElementCount", text = ""},
  {abbr = "msmq.multi_queue_signature.id", type = "uint16", label = "ID", text = ""},
  {abbr = "msmq.multi_queue_signature.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.multi_queue_signature.size", type = "uint32", label = "Size", text = ""},
  {abbr = "msmq.session_header.ack_sequence_number", type = "uint16", label = "AckSequenceNumber", text = ""},
  {abbr = "msmq.session_header.recoverable_ack_number", type = "uint16", label = "RecoverableMsgAckSeqNumber", text = ""},
  {abbr = "msmq.session_header.recoverable_ack_flags", type = "uint32", label = "RecoverableMsgAckFlags", text = ""},
  {abbr = "msmq.session_header.user_sequence_number", type = "uint16", label = "UserMsgSequenceNumber", text = ""},
  {abbr = "msmq.session_header.recoverable_sequence_number", type = "uint16", label = "RecoverableMsgSeqNumber", text = ""},
  {abbr = "msmq.session_header.window_size", type = "uint16", label = "WindowSize", text = ""},
  {abbr = "msmq.session_header.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.extension.header_size", type = "uint32", label = "HeaderSize", text = ""},
  {abbr = "msmq.extension.remaining_headers_size", type = "uint32", label = "RemainingHeadersSize", text = ""},
  {abbr = "msmq.extension.flags", type = "uint8", label = "Flags", text = "", hex = true},
  {abbr = "msmq.extension.flags.dl", type = "bool", label = "DL", text = "", mask = 1, bits = 8},
  {abbr = "msmq.extension.flags.sq", type = "bool", label = "SQ", text = "", mask = 2, bits = 8},
  {abbr = "msmq.extension.flags.di", type = "bool", label = "DI", text = "", mask = 8, bits = 8},
  {abbr = "msmq.extension.flags.ea", type = "bool", label = "EA", text = "", mask = 16, bits = 8},
  {abbr = "msmq.extension.r", type = "bytes", label = "R", text = ""},
  {abbr = "msmq.subqueue.header_size", type = "uint32", label = "HeaderSize", text = ""},
  {abbr = "msmq.subqueue.bits", type = "uint32", label = "Bits", text = ""},
  {abbr = "msmq.abort_count", type = "uint32", label = "abort count", text = "AbortCounter: reads or moves that failed in a row, as found"},
  {abbr = "msmq.move_count", type = "uint32", label = "move count", text = "MoveCounter: times moved, as found"},
  {abbr = "msmq.subqueue.last_move_time", type = "uint32", label = "LastMoveTime", text = ""},
  {abbr = "msmq.dead_letter.header_size", type = "uint32", label = "HeaderSize", text = ""},
  {abbr = "msmq.extended_address.header_size", type = "uint32", label = "HeaderSize", text = ""},
  {abbr = "msmq.extended_address.address_length", type = "uint16", label = "AddressLength", text = ""},
  {abbr = "msmq.extended_address.address_type", type = "uint16", label = "AddressType", text = ""},
  {abbr = "msmq.extended_address.address_scope", type = "uint32", label = "AddressScope", text = ""},
  {abbr = "msmq.extended_address.address", type = "bytes", label = "Address", text = ""},
  {abbr = "msmq.internal.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.internal.flags", type = "uint16", label = "Flags", text = "", hex = true},
  {abbr = "msmq.establish_connection.client_guid", type = "guid", label = "ClientGuid", text = ""},
  {abbr = "msmq.establish_connection.server_guid", type = "guid", label = "ServerGuid", text = ""},
  {abbr = "msmq.establish_connection.time_stamp", type = "uint32", label = "TimeStamp", text = ""},
  {abbr = "msmq.establish_connection.operating_system", type = "uint16", label = "OperatingSystem", text = ""},
  {abbr = "msmq.establish_connection.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.connection_parameters.recoverable_ack_timeout", type = "uint32", label = "RecoverableAckTimeout", text = ""},
  {abbr = "msmq.connection_parameters.ack_timeout", type = "uint32", label = "AckTimeout", text = ""},
  {abbr = "msmq.connection_parameters.reserved", type = "uint16", label = "Reserved", text = ""},
  {abbr = "msmq.connection_parameters.window_size", type = "uint16", label = "WindowSize", text = ""},
  {abbr = "msmq.acknowledged_message.source_guid", type = "guid", label = "SourceGUID", text = ""},
  {abbr = "msmq.acknowledged_ordinal", type = "uint32", label = "acknowledged ordinal", text = "MessageID of a final ack's body; null for order acks"},
  {abbr = "msmq.ping.flags", type = "uint16", label = "Flags", text = "", hex = true},
  {abbr = "msmq.ping.flags.rc", type = "bool", label = "RC", text = "", mask = 1, bits = 16},
  {abbr = "msmq.ping.flags.rf", type = "bool", label = "RF", text = "", mask = 2, bits = 16},
  {abbr = "msmq.ping.signature", type = "uint16", label = "Signature", text = "", hex = true},
  {abbr = "msmq.ping.cookie", type = "uint32", label = "Cookie", text = ""},
  {abbr = "msmq.ping.qm_guid", type = "guid", label = "QMGuid", text = ""},
  {abbr = "msmq.queue_handle", type = "uint32", label = "queue handle", text = "hQueue, hRemoteQueue"},
  {abbr = "msmq.cursor_handle", type = "uint32", label = "cursor handle", text = "cursor, 0 without one"},
  {abbr = "msmq.action", type = "uint32", label = "action", text = "ulAction of a Start: receive or peek, and where", names = "action", hex = true},
  {abbr = "msmq.timeout_ms", type = "uint32", label = "timeout ms", text = "how long the server may wait, milliseconds; 4294967295 is for ever"},
  {abbr = "msmq.parameter.dw_size", type = "uint32", label = "dwSize", text = ""},
  {abbr = "msmq.queue_descriptor", type = "uint32", label = "queue descriptor", text = "pQueue, dwQueue"},
  {abbr = "msmq.request_id", type = "uint32", label = "request id", text = "dwRequestID, the client's number of a Start, unique in its context"},
  {abbr = "msmq.parameter.reserved", type = "uint32", label = "Reserved", text = ""},
  {abbr = "msmq.arrive_time", type = "uint32", label = "dwArriveTime", text = ""},
  {abbr = "msmq.parameter.e_ack_nack", type = "uint32", label = "eAckNack", text = ""},
  {abbr = "msmq.remote_read_handle", type = "bytes", label = "remote read handle", text = "qm2qm: PCTX_REMOTEREAD_HANDLE that Start returned or End gave, hex"},
  {abbr = "msmq.hresult", type = "uint32", label = "hresult", text = "result of the call, unsigned; null for methods without one and for faults", names = "hresult", hex = true},
  {abbr = "msmq.ack", type = "uint32", label = "ack", text = "dwAck of an End: whether the message was taken", names = "ack"},
  {abbr = "msmq.parameter.pph_context", type = "bytes", label = "pphContext", text = ""},
  {abbr = "msmq.client_id", type = "guid", label = "client id", text = "GUID of the client's queue manager, also pLicGuid, lower case"},
  {abbr = "msmq.mqs", type = "uint32", label = "mqs", text = "dwMQS, kind and version of the client's queue manager"},
  {abbr = "msmq.open_context", type = "uint32", label = "open context", text = "dwpContext"},
  {abbr = "msmq.context_handle", type = "bytes", label = "context handle", text = "context handle given, or for opening methods returned, hex of 20 bytes"},
  {abbr = "msmq.port_type", type = "uint32", label = "port type", text = "kind of port that was asked for"},
  {abbr = "msmq.returned_port", type = "uint32", label = "returned port", text = "TCP port that a port-asking method answered"},
  {abbr = "msmq.version_major", type = "uint8", label = "version major", text = "major version, of the client or as answered"},
  {abbr = "msmq.version_minor", type = "uint8", label = "version minor", text = "minor version, of the client or as answered"},
  {abbr = "msmq.build_number", type = "uint16", label = "build number", text = "build number, of the client or as answered"},
  {abbr = "msmq.lookup_id", type = "uint64", label = "lookup id", text = "LookupId as sent, 0 included"},
  {abbr = "msmq.access", type = "uint32", label = "access", text = "access mode asked for, as sent", hex = true},
  {abbr = "msmq.share_mode", type = "uint32", label = "share mode", text = "share mode asked for, as sent", names = "share_mode"},
  {abbr = "msmq.non_routing_server", type = "bool", label = "non routing server", text = "the client says that it is no routing server"},
  {abbr = "msmq.workgroup", type = "bool", label = "workgroup", text = "the client says that it is in workgroup mode"},
  {abbr = "msmq.max_body_bytes", type = "uint32", label = "max body bytes", text = "most bytes of the body that the client takes"},
  {abbr = "msmq.max_compound_message_bytes", type = "uint32", label = "max compound message bytes", text = "most bytes of a compound message that the client takes"},
  {abbr = "msmq.sequence_id", type = "uint64", label = "sequence id", text = "SequentialId, pSequenceId as sent, 0 included"},
  {abbr = "msmq.parameter.pdw_number_of_sections", type = "uint32", label = "pdwNumberOfSections", text = ""},
  {abbr = "msmq.move_context", type = "uint64", label = "move context", text = "context of a move: of opnum 11, and ullContextTo"},
  {abbr = "msmq.transaction_id", type = "guid", label = "transaction id", text = "transaction identifier (XACTUOW) as GUID text; null when zero"},
  {abbr = "msmq.propagation_token_bytes", type = "uint32", label = "propagation token bytes", text = "size of the transaction propagation token, bytes"},
  {abbr = "msmq.acknowledgement_class", type = "uint16", label = "acknowledgement class", text = "class of R_SetUserAcknowledgementClass"},
  {abbr = "msmq.parameter.cp", type = "uint32", label = "cp", text = ""},
  {abbr = "msmq.parameter.dw_calling_process_id", type = "uint32", label = "dwCallingProcessID", text = ""},
  {abbr = "msmq.parameter.dw_remote_protocol", type = "uint32", label = "dwRemoteProtocol", text = ""},
  {abbr = "msmq.queue_manager_context", type = "uint32", label = "queue manager context", text = "pdwQMContext, hQMContext, as sent"},
  {abbr = "msmq.parameter.ph_queue", type = "bytes", label = "phQueue", text = ""},
  {abbr = "msmq.remote_cursor_handle", type = "uint32", label = "remote cursor handle", text = "hRemoteCursor of rpc_ACSetCursorProperties"},
  {abbr = "msmq.parameter.pcc_h_cursor", type = "uint32", label = "pcc.hCursor", text = ""},
  {abbr = "msmq.parameter.pcc_srv_h_ac_queue", type = "uint32", label = "pcc.srv_hACQueue", text = ""},
  {abbr = "msmq.parameter.pcc_cli_p_qm_queue", type = "uint32", label = "pcc.cli_pQMQueue", text = ""},
}

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

-- The protocol, its fields and preferences, and how values are shown.
local msmq = Proto("msmq", "Message Queuing (MSMQ)")
local fields = {}  -- by abbreviation

local function make_field(row)
  local names = row.names and declared.names[row.names]
  local maker = ProtoField[row.type]
  if row.type == "bool" then
    return maker(row.abbr, row.label, row.bits or base.NONE, nil, row.mask, row.text)
  elseif row.type == "absolute_time" then
    return maker(row.abbr, row.label, base.UTC, row.text)
  elseif row.type == "framenum" then
    return maker(row.abbr, row.label, base.NONE, frametype[row.frametype], 0, row.text)
  elseif row.type == "guid" then
    return maker(row.abbr, row.label, row.text)
  elseif row.type == "string" or row.type == "bytes" then
    return maker(row.abbr, row.label, base.NONE, row.text)
  end
  return maker(row.abbr, row.label, row.hex and base.HEX or base.DEC, names, row.mask, row.text)
end

-- Fields that no table has: links to packets, and what is left of headers.
local LINKS = {
  {abbr = "msmq.request_packet", label = "request in", frametype = "REQUEST", text = "packet with the end of the request"},
  {abbr = "msmq.response_packet", label = "response in", frametype = "RESPONSE", text = "packet with the end of the response"},
  {abbr = "msmq.session_acked_by", label = "acknowledged in", frametype = "ACK", text = "first packet whose SessionHeader acknowledges this one"},
  {abbr = "msmq.acknowledges", label = "acknowledges", frametype = "ACK", text = "packet that this SessionHeader is the first to acknowledge"},
  {abbr = "msmq.stored_by", label = "stored, said in", frametype = "ACK", text = "first packet whose SessionHeader says that this one is on disk"},
  {abbr = "msmq.stores", label = "says stored", frametype = "ACK", text = "packet of which this SessionHeader is the first to say that it is on disk"},
  {abbr = "msmq.message_packet", label = "message in", frametype = "REQUEST", text = "packet with the message that this one acknowledges"},
  {abbr = "msmq.acknowledgement_packet", label = "acknowledgement in", frametype = "RESPONSE", text = "packet with an acknowledgement of this message"},
}
for _, link in ipairs(LINKS) do
  link.type = "framenum"
  table.insert(declared.fields, link)
end
for _, row in ipairs({
  {abbr = "msmq.direction", type = "string", label = "direction", text = "request, response or fault"},
  {abbr = "msmq.outcome", type = "string", label = "outcome", text = "ok, fault, encrypted: of an answer"},
  {abbr = "msmq.octets", type = "bytes", label = "octets", text = "octets of a header without a field of their own"},
  {abbr = "msmq.stray", type = "bytes", label = "stray octets", text = "octets where no packet begins"},
  {abbr = "msmq.error", type = "string", label = "error", text = "truncated, malformed, unsupported: as in the column errors, with the field"},
}) do
  table.insert(declared.fields, row)
end

local all = {}
for _, row in ipairs(declared.fields) do
  fields[row.abbr] = make_field(row)
  table.insert(all, fields[row.abbr])
end
msmq.fields = all

local experts = {
  damaged = ProtoExpert.new("msmq.expert.damaged", "damaged packet", expert.group.MALFORMED, expert.severity.ERROR),
  deviation = ProtoExpert.new("msmq.expert.deviation", "not as specified", expert.group.PROTOCOL, expert.severity.WARN),
  stray = ProtoExpert.new("msmq.expert.stray", "octets where no packet begins", expert.group.SEQUENCE, expert.severity.WARN),
  failed = ProtoExpert.new("msmq.expert.failed", "the call failed", expert.group.RESPONSE_CODE, expert.severity.NOTE),
  negative = ProtoExpert.new("msmq.expert.negative", "negative acknowledgement", expert.group.RESPONSE_CODE, expert.severity.WARN),
  refused = ProtoExpert.new("msmq.expert.refused", "connection refused", expert.group.RESPONSE_CODE, expert.severity.WARN),
  sealed = ProtoExpert.new("msmq.expert.sealed", "stub is encrypted", expert.group.SECURITY, expert.severity.CHAT),
}
local all_experts = {}
for _, each in pairs(experts) do
  table.insert(all_experts, each)
end
msmq.experts = all_experts

msmq.prefs.tcp_ports = Pref.range("TCP ports", digits(constants.BINARY_PROTOCOL_PORT), "Ports of the binary protocol", 65535)
msmq.prefs.udp_ports = Pref.range("UDP ports", digits(constants.PING_PORT), "Ports of its pings", 65535)
msmq.prefs.rpc = Pref.bool("Show RPC calls", true, "Show calls of the interfaces of Message Queuing, and the messages in them")

local tcp_stream = Field.new("tcp.stream")
local lost_segment = Field.new("tcp.analysis.lost_segment")
local addresses = {
  src = {Field.new("ip.src"), Field.new("ipv6.src")}, dst = {Field.new("ip.dst"), Field.new("ipv6.dst")},
}

-- The octets of the innermost source ("src") or destination ("dst"): names of hosts may change while a file is read.
local function address(which)
  for _, field in ipairs(addresses[which]) do
    local found = {field()}
    if #found > 0 then
      return found[#found].range:raw()
    end
  end
  return ""
end

-- Add a value of a column; without octets it is computed from others.
local function show(tree, name, value, range)
  if value == nil then
    return nil
  end
  local item
  if range then
    item = tree:add(fields["msmq." .. name], range, value)
  else
    item = tree:add(fields["msmq." .. name], value)
    item:set_generated()
  end
  return item
end

local function show_error(tree, raised)
  local text = raised.code .. ": " .. raised.field
  local is_damage = raised.code ~= "malformed" or not raised.soft
  show(tree, "error", text):add_proto_expert_info(is_damage and experts.damaged or experts.deviation, text)
end

-- Show the fields of a declared header at a place, as far as its octets are there.
local function show_header(tree, tvb, at, stop, layout)
  for _, field in ipairs(declared.headers[layout].fields) do
    local place = at + field.at
    if place + field.size > stop then
      return
    end
    local range = tvb(place, field.size)
    if field.abbr == "msmq.sent_at" then
      local seconds = range:le_uint()
      if seconds > 0 then
        tree:add(fields[field.abbr], range, NSTime.new(seconds, 0))
      end
    else
      local item = tree:add_le(fields[field.abbr], range)
      for _, name in ipairs(field.bits or {}) do
        item:add_le(fields[name], range)
      end
      if field.is_set then
        item:add(fields[field.is_set], range, range:le_uint() ~= 0):set_generated()
      end
    end
  end
end

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

-- The binary protocol, [MS-MQQB]: packets in the stream of TCP 1801, their numbers, and what acknowledges them.
local sides     -- by stream and sender: what was counted
local packets   -- by frame and place: what the first pass found out of a packet
local sequences -- by TxSequenceID: the packets with its messages
local order     -- counts packets in the order of the file
local holes     -- frames before which octets are missing

local function forget_sessions()
  sides, packets, sequences, order, holes = {}, {}, {}, 0, {}
end

-- What one end of a stream sent: that of the source ("src") or the destination ("dst") of this frame.
local function side_of(stream, which, port)
  local name = stream.value .. " " .. port .. " " .. address(which)
  sides[name] = sides[name] or {
    session = {unnumbered = {}, by_number = {}}, recoverable = {unnumbered = {}, by_number = {}}, headers = {},
  }
  return sides[name]
end

-- Flags and PacketSize where a header of a packet is; nil where none is.
local function packet_size(tvb, at)
  if tvb:len() - at < constants.MIN_STEP_BYTES or tvb(at, 1):uint() ~= constants.PACKET_VERSION
    or tvb(at + 4, 4):le_uint() ~= constants.PACKET_SIGNATURE then
    return nil
  end
  local size = tvb(at + 8, 4):le_uint()
  if size < constants.MIN_PACKET_BYTES or size > constants.MAX_PACKET_BYTES then
    return nil
  end
  return size, tvb(at + 2, 2):le_uint()
end

local INTERNAL_TYPES = {
  [constants.SESSION_ACK_BYTES] = constants.SESSION_ACK,
  [constants.ESTABLISH_CONNECTION_BYTES] = constants.ESTABLISH_CONNECTION,
  [constants.CONNECTION_PARAMETERS_BYTES] = constants.CONNECTION_PARAMETERS,
}

-- Whether a valid header is at a place; fields that are not there are not asked.
local function is_valid_header(tvb, at)
  local size, flags = packet_size(tvb, at)
  if not size then
    return false
  end
  local seen = tvb:len() - at
  if has(flags, constants.BASE_FLAG_IN) then
    local kind = INTERNAL_TYPES[size]
    if not kind or (seen >= 16 and tvb(at + 12, 4):le_uint() ~= constants.INFINITE_TIMEOUT) then
      return false
    end
    return seen < 20 or bits(tvb(at + 18, 2):le_uint(), 0, 4) == kind
  end
  if size < constants.MIN_MESSAGE_BYTES then
    return false
  end
  if seen < constants.CHECKED_HEADER_BYTES then
    return true
  end
  local word = tvb(at + 60, 4):le_uint()
  for _, name in ipairs(declared.queue_names) do
    if name.name ~= "ResponseQueue" and not name.allowed[bits(word, name.shift, 3)] then
      return false
    end
  end
  return has(word, constants.USER_FLAG_MP)
end

-- The place of the next valid header behind which another one is, or the octets end; nil without one.
local function find_header(tvb, at)
  local raw, place = tvb:raw(at), 1
  while true do
    local found = raw:find("LIOR", place + 4, true)
    if not found then
      return nil
    end
    local begin = at + found - 5
    if is_valid_header(tvb, begin) then
      local size = packet_size(tvb, begin)
      local after = begin + size
      if after + constants.MIN_STEP_BYTES > tvb:len() or is_valid_header(tvb, after)
        or after + declared.headers.SessionHeader.size + constants.MIN_STEP_BYTES > tvb:len()
        or is_valid_header(tvb, after + declared.headers.SessionHeader.size) then
        return begin
      end
    end
    place = found - 3
  end
end

-- Octets of a packet with its SessionHeader, which PacketSize does not count; nil if further octets decide.
local function whole_length(tvb, at, size, flags)
  if has(flags, constants.BASE_FLAG_IN) or not has(flags, constants.BASE_FLAG_SH) then
    return size
  end
  local after, more = at + size, declared.headers.SessionHeader.size
  if after + more <= tvb:len() and is_valid_header(tvb, after) and not is_valid_header(tvb, after + more) then
    return size
  end
  return size + more
end

-- Number the counted packets of a side, and those before the first anchor once it is seen.
local function count_packet(numbers, packet, field)
  if numbers.count then
    numbers.count = numbers.count + 1
    packet[field] = numbers.count
    numbers.by_number[numbers.count % 65536] = packet
  else
    table.insert(numbers.unnumbered, packet)
  end
end

local function anchor(numbers, sent, field)
  if numbers.count then
    return false
  end
  local total = #numbers.unnumbered
  if sent < total then
    sent = sent + 65536
  end
  for place, packet in ipairs(numbers.unnumbered) do
    packet[field] = sent - total + place
    numbers.by_number[packet[field] % 65536] = packet
  end
  numbers.count, numbers.unnumbered = sent, {}
  return true
end

-- The packets of a side that a SessionHeader is the first to acknowledge: from its number back to one that already is.
local function acknowledge(side, header)
  local numbers, number = side.session, header.ack
  if numbers.count and (number - numbers.count) % 65536 < 32768 then
    number = numbers.count % 65536
  end
  for _ = 1, 32768 do
    local packet = numbers.by_number[number]
    if not packet or packet.session_acked_by then
      return
    end
    if packet.order < header.packet.order then
      packet.session_acked_by = header.packet.frame
      table.insert(header.packet.acknowledges, packet.frame)
    end
    number = (number - 1) % 65536
  end
end

local function note_stored(side, header)
  if header.stored == 0 then
    return
  end
  for place = 0, 31 do
    local packet = side.recoverable.by_number[(header.stored + place) % 65536]
    if packet and bits(header.stored_flags, place, 1) == 1 and not packet.stored_by
      and packet.order < header.packet.order then
      packet.stored_by = header.packet.frame
      table.insert(header.packet.stores, packet.frame)
    end
  end
end

-- Count a packet of the first pass; other is the side that it acknowledges.
local function follow(side, other, packet)
  if packet.kind == "establish_connection" then
    side.session.count, side.recoverable.count = 0, 0
  end
  if packet.counted then
    count_packet(side.session, packet, "session_number")
    if packet.recoverable then
      count_packet(side.recoverable, packet, "recoverable_number")
    end
  end
  local header = packet.header
  if not header then
    return
  end
  local numbered = anchor(side.session, header.sent, "session_number")
  local stored = anchor(side.recoverable, header.sent_recoverable, "recoverable_number")
  if numbered or stored then
    for _, earlier in ipairs(other.headers) do  -- these came before the numbers were known
      acknowledge(side, earlier)
      note_stored(side, earlier)
    end
  end
  header.packet = packet
  acknowledge(other, header)
  note_stored(other, header)
  if not other.session.count or not other.recoverable.count then
    table.insert(side.headers, header)
  end
end

-- Octets are missing before what follows: numbers are not known from here on.
local function lose_step(side)
  side.session.count, side.recoverable.count = nil, nil
  side.session.unnumbered, side.recoverable.unnumbered = {}, {}
end

-- Note once for a frame that TCP misses octets before it.
local function note_hole(stream, pinfo)
  if stream and lost_segment() and not holes[pinfo.number] then
    holes[pinfo.number] = true
    lose_step(side_of(stream, "src", pinfo.src_port))
  end
end

local function read_session_header(tvb, at)
  local values = {}
  for place, field in ipairs(declared.headers.SessionHeader.fields) do
    values[place] = tvb(at + field.at, field.size):le_uint()
  end
  return {ack = values[1], stored = values[2], stored_flags = values[3], sent = values[4], sent_recoverable = values[5]}
end

local ACK_LABEL = "QM Ordering Ack"

-- Order and final acks are messages for the order queue whose label says so, [MS-MQQB] 2.2.4, 2.2.5.
local function kind_of_message(chain)
  if not chain.label or chain.label.text ~= ACK_LABEL
    or chain.label.size ~= 2 * (#ACK_LABEL + 1) then
    return "user_message"
  end
  local queue = chain.queues.DestinationQueue
  local is_order = queue.kind == 3 and chain.tvb(queue.at, 4):le_uint() == 4
  if queue.kind == constants.DIRECT_NAME_TYPE then
    local text = utf16(chain.tvb, queue.at, queue.size) or ""
    is_order = text:match("[^\\]*$"):lower() == "order_queue$"
  end
  local class = chain:field("MessagePropertiesHeader", chain.properties_at, "MessageClass")
  if is_order and class == constants.MQMSG_CLASS_ORDER_ACK then
    return "order_ack"
  end
  return is_order and class >= 0x4000 and "final_ack" or "user_message"
end

-- Numbers, and links to other packets.
local function show_packet_links(tree, packet)
  for _, name in ipairs({"session_number", "recoverable_number", "session_acked_by", "stored_by"}) do
    show(tree, name, packet[name])
  end
  for _, name in ipairs({"acknowledges", "stores", "message_packet", "acknowledgement_packet"}) do
    for _, frame in ipairs(packet[name]) do
      show(tree, name, frame)
    end
  end
end

local function link(packet, message)
  table.insert(packet.message_packet, message.frame)
  table.insert(message.acknowledgement_packet, packet.frame)
end

-- Note a transactional message, or find those that an ack means: a final ack the one with its number, an order ack all up
-- to it that no order ack meant before.
local function follow_sequence(packet)
  if not packet.sequence then
    return
  end
  sequences[packet.sequence] = sequences[packet.sequence] or {by_number = {}, waiting = {}}
  local sequence, still_waiting = sequences[packet.sequence], {}
  if packet.kind == "user_message" then
    sequence.by_number[packet.number] = sequence.by_number[packet.number] or {}
    table.insert(sequence.by_number[packet.number], packet)
    table.insert(sequence.waiting, packet)
  elseif packet.kind == "final_ack" then
    for _, message in ipairs(sequence.by_number[packet.number] or {}) do
      link(packet, message)
    end
  else
    for _, message in ipairs(sequence.waiting) do
      if message.number <= packet.number then
        link(packet, message)
      else
        table.insert(still_waiting, message)
      end
    end
    sequence.waiting = still_waiting
  end
end

-- Show the body of an order or final ack; return where its sequence and number are, if they are there.
local function show_acknowledgement(tree, chain)
  local tvb, at, stop = chain.tvb, chain.body.at, chain.body.at + chain.body.seen
  local sequence, message = declared.headers.AcknowledgedSequence, declared.headers.AcknowledgedMessage
  local sub = tree:add(msmq, tvb(at, chain.body.seen), "Acknowledgement")
  show_header(sub, tvb, at, stop, "AcknowledgedSequence")
  if stop - at < sequence.size + message.size then
    show_error(tree, {code = "truncated", field = "MessagePropertiesHeader.MessageBody"})
  end
  local class = chain:field("MessagePropertiesHeader", chain.properties_at, "MessageClass")
  if class ~= constants.MQMSG_CLASS_ORDER_ACK then
    show_header(sub, tvb, at + sequence.size, stop, "AcknowledgedMessage")
    if stop - at >= sequence.size + message.size then
      local place = at + sequence.size
      local id = guid(tvb, place, false, true) .. "\\" .. digits(tvb(place + 16, 4):le_uint())
      show(sub, "acknowledged_message_id", id, tvb(place, message.size))
    end
  end
  return stop - at >= 12 and at or nil
end

-- Show an internal packet; return its kind.
local function show_internal(tree, tvb, at, stop)
  local base = declared.headers.BaseHeader.size
  local sub = tree:add(msmq, tvb(at, math.min(base, stop - at)), "BaseHeader")
  show_header(sub, tvb, at, stop, "BaseHeader")
  at = at + base
  if stop - at < declared.headers.InternalHeader.size then
    show_error(tree, {code = "truncated", field = "InternalHeader"})
    return "unknown"
  end
  sub = tree:add(msmq, tvb(at, declared.headers.InternalHeader.size), "InternalHeader")
  show_header(sub, tvb, at, stop, "InternalHeader")
  local flags = tvb(at + 2, 2):le_uint()
  local kind = declared.names["internal.packet_type"][bits(flags, 0, 4)] or "unknown"
  if bits(flags, 4, 1) == 1 then
    sub:add_proto_expert_info(experts.refused, "refused: " .. kind)
  end
  at = at + declared.headers.InternalHeader.size
  if at >= stop then
    return kind
  end
  local names = {establish_connection = "EstablishConnectionHeader", connection_parameters = "ConnectionParametersHeader"}
  if names[kind] then
    sub = tree:add(msmq, tvb(at, stop - at), names[kind])
    show_header(sub, tvb, at, stop, names[kind])
    local size = declared.headers[names[kind]].size
    if stop - at > size then
      sub:add(fields["msmq.octets"], tvb(at + size, stop - at - size)):prepend_text("padding, ")
    end
  elseif kind == "session_ack" and stop - at >= declared.headers.SessionHeader.size then
    sub = tree:add(msmq, tvb(at, stop - at), "SessionHeader")
    show_header(sub, tvb, at, stop, "SessionHeader")
  end
  return kind
end

local KIND_LABELS = {
  user_message = "message", order_ack = "order ack", final_ack = "final ack", session_ack = "session ack",
  establish_connection = "establish connection", connection_parameters = "connection parameters", unknown = "unknown packet",
}

-- Show one packet; return what the first pass keeps of it, and a line about it.
local function show_packet(tree, tvb, at, stop, flags)
  local found = {acknowledges = {}, stores = {}, message_packet = {}, acknowledgement_packet = {}}
  if has(flags, constants.BASE_FLAG_IN) then
    found.kind = show_internal(tree, tvb, at, stop)
    local header = at + declared.headers.BaseHeader.size + declared.headers.InternalHeader.size
    if found.kind == "session_ack" and stop - header >= declared.headers.SessionHeader.size then
      found.header = read_session_header(tvb, header)
    end
    return found, KIND_LABELS[found.kind]
  end
  local chain, id = show_message(tree, tvb, at, stop, constants.PROTOCOL_BINARY)
  found.kind, found.counted = kind_of_message(chain), true
  found.recoverable = chain.flags and bits(chain.flags, 5, 2) == 1
  if chain.session_at then
    found.header = read_session_header(tvb, chain.session_at)
  end
  local line, sequence_at = {KIND_LABELS[found.kind]}, nil
  if found.kind ~= "user_message" then
    sequence_at = chain.whole.properties and show_acknowledgement(tree, chain)
  elseif chain.transaction_at then
    sequence_at = chain.transaction_at + 4
  end
  if sequence_at then
    found.sequence, found.number = tvb(sequence_at, 8):raw(), tvb(sequence_at + 8, 4):le_uint()
  end
  if chain.properties_at then
    local class = chain:field("MessagePropertiesHeader", chain.properties_at, "MessageClass")
    if class ~= 0 then
      table.insert(line, code_name("class", class, 4))
    end
  end
  local queue = chain.whole.user and user_queue(chain, "DestinationQueue")
  if queue then
    table.insert(line, "to " .. printable(queue))
  end
  if found.kind == "user_message" and chain.whole.properties and chain.label.text and chain.label.text ~= "" then
    table.insert(line, "\"" .. printable(chain.label.text) .. "\"")
  end
  return found, table.concat(line, " ")
end

-- Dissect a whole packet: in the first pass it is counted, later ones show what was found.
local function dissect_packet(tvb, at, stop, flags, pinfo, tree, ends)
  local sub = tree:add(msmq, tvb(at, stop - at))
  local packet, line = show_packet(sub, tvb, at, stop, flags)
  show(sub, "kind", packet.kind)
  sub:append_text(", " .. line)
  local key = pinfo.number .. "/" .. tvb:offset() .. "/" .. at
  if packets[key] then
    packet = packets[key]
  elseif ends then
    order = order + 1
    packet.frame, packet.order = pinfo.number, order
    packets[key] = packet
    follow(ends[1], ends[2], packet)
    follow_sequence(packet)
  end
  show_packet_links(sub, packet)
  return line
end

local function show_stray(tree, tvb, at, size)
  local sub = tree:add(msmq, tvb(at, size), "Message Queuing, octets where no packet begins")
  sub:add(fields["msmq.stray"], tvb(at, size)):add_proto_expert_info(experts.stray)
end

-- A ping, [MS-MQQB] 2.2.7.
local function dissect_ping(tvb, pinfo, tree)
  local size = declared.headers.Ping.size
  if tvb:len() ~= size or tvb(2, 2):le_uint() ~= constants.PING_SIGNATURE then
    return 0
  end
  local sub = tree:add(msmq, tvb(0, size), "Message Queuing ping")
  show_header(sub, tvb, 0, size, "Ping")
  local is_answer = pinfo.src_port == constants.PING_PORT
  if is_answer and bits(tvb(0, 2):le_uint(), 1, 1) == 1 then
    sub:add_proto_expert_info(experts.refused, "ping refused")
  end
  pinfo.cols.protocol = "MSMQ"
  pinfo.cols.info = is_answer and "ping answer" or "ping"
  return size
end

-- Cut what TCP gives into packets; returns how many octets are used, 0 if nothing here is of the protocol.
function msmq.dissector(tvb, pinfo, tree)
  if pinfo.port_type ~= 2 then
    return dissect_ping(tvb, pinfo, tree)
  end
  local stream = tcp_stream()
  local ends = stream and {side_of(stream, "src", pinfo.src_port), side_of(stream, "dst", pinfo.dst_port)}
  note_hole(stream, pinfo)
  local at, lines, size_of_all = 0, {}, tvb:len()
  local function wait(size)
    if pinfo.can_desegment == 0 or size_of_all < tvb:reported_len() then
      return false
    end
    pinfo.desegment_offset, pinfo.desegment_len = at, size
    return true
  end
  while at < size_of_all do
    local left = size_of_all - at
    local size, flags = packet_size(tvb, at)
    if size then
      local length = whole_length(tvb, at, size, flags)
      if length > left and wait(length - left) then
        break
      end
      table.insert(lines, dissect_packet(tvb, at, at + math.min(length, left), flags, pinfo, tree, ends))
      at = at + math.min(length, left)
    elseif left < constants.MIN_STEP_BYTES and tvb(at, 1):uint() == constants.PACKET_VERSION
      and wait(DESEGMENT_ONE_MORE_SEGMENT) then
      break
    else
      local found = find_header(tvb, at)
      if not found and #lines == 0 and at == 0 and not (ends and (ends[1].session.count or ends[2].session.count)) then
        return 0
      end
      if ends and not pinfo.visited then
        lose_step(ends[1])
      end
      local stop = found or size_of_all
      show_stray(tree, tvb, at, stop - at)
      at = stop
    end
  end
  pinfo.cols.protocol = "MSMQ"
  if #lines > 0 then
    pinfo.cols.info = table.concat(lines, "; ")
  end
  return size_of_all
end

-- On other ports: the first octets of a side are the header of an EstablishConnection packet.
msmq:register_heuristic("tcp", function(tvb, pinfo, tree)
  if tvb:len() < constants.MIN_SEARCH_BYTES or not is_valid_header(tvb, 0)
    or packet_size(tvb, 0) ~= constants.ESTABLISH_CONNECTION_BYTES then
    return false
  end
  pinfo.conversation = msmq
  msmq.dissector(tvb, pinfo, tree)
  return true
end)

-- Listen on the ports of the preferences.
local listening = {}
local function listen()
  for name, ports in pairs({["tcp.port"] = msmq.prefs.tcp_ports, ["udp.port"] = msmq.prefs.udp_ports}) do
    local dissectors = DissectorTable.get(name)
    if listening[name] and listening[name] ~= "" then
      dissectors:remove(listening[name], msmq)
    end
    if ports ~= "" then
      dissectors:add(ports, msmq)
    end
    listening[name] = ports
  end
end
listen()
msmq.prefs_changed = listen

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
