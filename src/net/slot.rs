//! The slot of a key. Each slot of a cluster belongs to one master.
//!
//! Source: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model>.

/// How many slots every cluster has.
pub(crate) const SLOTS: u16 = 16384;

/// The slot of a key, or of a sharded channel.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

/// The text between the first `{` and the first `}` behind it; the whole key if a brace is missing or nothing is between
/// them.
fn tag_of(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else {
        return key;
    };
    let tag = &key[open + 1..];
    match tag.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(close) => &tag[..close],
    }
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        let [high, low] = crc.to_be_bytes();
        u16::from_be_bytes([low, 0]) ^ TABLE[usize::from(high ^ byte)]
    })
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut first: u16 = 0;
    while first < 256 {
        let (mut crc, mut bit) = (first << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            };
            bit += 1;
        }
        table[first as usize] = crc;
        first += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_a_node_says() {
        // By `CLUSTER KEYSLOT` of Redis 7.0.15; 0x31C3 is the check value of the specification.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (key, slot) in [
            ("", 0),
            ("foo", 12182),
            ("bar", 5061),
            ("{foo}bar", 12182),
            ("x{bar}{foo}", 5061),
            ("stock:42", 2594),
            ("redisson_lock__channel:{stock:42}", 2594),
            ("foo{", 7673),
            ("a}b", 7866),
            ("{}x", 10595),
            ("{{a}}b", 10276),
            ("日本", 10949),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }
}
