"""Kerberos encryption types: the examples of RFC 8009, appendix A, and the test peer's implementation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from impacket.krb5 import crypto

from peer.sha2 import Aes128Sha2, Aes256Sha2
from udfs.sealed.ciphers import aes_block_decryptor, decrypt_cts, rc4_keystream
from udfs.sealed.enctypes import (
    AES128_SHA2,
    AES256_SHA2,
    USAGE_CHECKSUM,
    USAGE_ENCRYPTION,
    USAGE_INTEGRITY,
    decrypt_and_verify,
    derive_key,
)

KEY_128 = bytes.fromhex("3705d96080c17728a0e800eab6e0d23c")
KEY_256 = bytes.fromhex("6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52")
DERIVED = {
    (AES128_SHA2, KEY_128): (
        "b31a018a48f54776f403e9a396325dc3", "9b197dd1e8c5609d6e67c3e37c62c72e", "9fda0e56ab2d85e1569a688696c26a6c",
    ),
    (AES256_SHA2, KEY_256): (
        "ef5718be86cc84963d8bbb5031e9f5c4ba41f28faf69e73d",
        "56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49",
        "69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f",
    ),
}  # fmt: skip
PLAIN = [bytes(range(0)), bytes(range(6)), bytes(range(16)), bytes(range(21))]
SEALED = {
    (AES128_SHA2, KEY_128): (
        "ef85fb890bb8472f4dab20394dca781dad877eda39d50c870c0d5a0a8e48c718",
        "84d7f30754ed987bab0bf3506beb09cfb55402cef7e6877ce99e247e52d16ed4421dfdf8976c",
        "3517d640f50ddc8ad3628722b3569d2ae07493fa8263254080ea65c1008e8fc295fb4852e7d83e1e7c48c37eebe6b0d3",
        "720f73b18d9859cd6ccb4346115cd336c70f58edc0c4437c5573544c31c813bce1e6d072c186b39a413c2f92ca9b8334a287ffcbfc",
    ),
    (AES256_SHA2, KEY_256): (
        "41f53fa5bfe7026d91faf9be959195a058707273a96a40f0a01960621ac612748b9bbfbe7eb4ce3c",
        "4ed7b37c2bcac8f74f23c1cf07e62bc7b75fb3f637b9f559c7f664f69eab7b6092237526ea0d1f61cb20d69d10f2",
        "bc47ffec7998eb91e8115cf8d19dac4bbbe2e163e87dd37f49beca92027764f68cf51f14d798c2273f35df574d1f932e40c4ff255b36a266",
        (
            "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2b2a602ac86fef6ecb647d6295fae077a1feb517508d2"
            "c16b4192e01f62"
        ),
    ),
}


@pytest.mark.parametrize(("enctype", "key"), DERIVED)
def test_keys_of_a_usage(enctype, key):
    found = [derive_key(enctype, key, 2, what).hex() for what in (USAGE_CHECKSUM, USAGE_ENCRYPTION, USAGE_INTEGRITY)]
    assert tuple(found) == DERIVED[enctype, key]


@pytest.mark.parametrize(("enctype", "key"), SEALED)
def test_decryption(enctype, key):
    for plain, sealed in zip(PLAIN, SEALED[enctype, key], strict=True):
        octets = bytes.fromhex(sealed)
        assert decrypt_and_verify(enctype, key, 2, octets) == plain
        assert decrypt_and_verify(enctype, key, 3, octets) is None
        assert decrypt_and_verify(enctype, key[::-1], 2, octets) is None
        for place in (0, 15, len(octets) - 1):
            assert (
                decrypt_and_verify(enctype, key, 2, octets[:place] + bytes([octets[place] ^ 1]) + octets[place + 1 :])
                is None
            )
        assert all(decrypt_and_verify(enctype, key, 2, octets[:size]) is None for size in range(len(octets)))


@given(st.binary(max_size=80), st.sampled_from([Aes128Sha2, Aes256Sha2, *(crypto._enctype_table[k] for k in (17, 18))]))
def test_what_the_peer_encrypts_is_decrypted(plain, kind):
    key = crypto.Key(kind.enctype, bytes(range(kind.keysize)))
    sealed = bytes(kind.encrypt(key, 7, plain, None))
    assert decrypt_and_verify(kind.enctype, key.contents, 7, sealed) == plain


def test_keys_of_a_size_or_type_that_is_none():
    assert decrypt_and_verify(AES256_SHA2, KEY_128, 2, bytes(80)) is None
    assert decrypt_and_verify(25, KEY_128, 2, bytes(80)) is None


def test_rc4_of_a_short_key_and_of_one_that_openssl_has_no_use_for():
    """RFC 6229: 40 bits; and 56 bits as in [MS-NLMP] 3.4.5.3, eight octets."""
    assert rc4_keystream(bytes.fromhex("0102030405"))(bytes(16)).hex() == "b2396305f03dc027ccc3524a0a1118a8"
    run = rc4_keystream(bytes(range(8)))
    assert run(b"ab") + run(b"cd") == rc4_keystream(bytes(range(8)))(b"abcd")


def test_cts_of_whole_blocks_is_cbc_with_the_last_two_swapped():
    """RFC 3962 B: 32 and 17 octets."""
    key = bytes.fromhex("636869636b656e207465726979616b69")
    for sealed, plain in (
        ("c6353568f2bf8cb4d8a580362da7ff7f97", b"I would like the "),
        ("39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584", b"I would like the General Gau's C"),
    ):
        assert decrypt_cts(aes_block_decryptor(key), bytes.fromhex(sealed)) == plain
