"""The keys of a run for sealed traffic, for jobs, which load them and may not import udfs."""

from udfs.sealed.decryption_keys import DecryptionKeys, KeytabError, NtlmKey, parse_keytab

__all__ = ["DecryptionKeys", "KeytabError", "NtlmKey", "parse_keytab"]
