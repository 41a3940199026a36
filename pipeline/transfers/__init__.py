"""Messages between queue managers over the binary protocol ([MS-MQQB], TCP 1801): sessions and their packets."""
