"""Records of eth-tester in the form of JSON-RPC."""

from __future__ import annotations

from typing import Any

from hexbytes import HexBytes

BLOCK = {
    "parent_hash": "parentHash",
    "sha3_uncles": "sha3Uncles",
    "logs_bloom": "logsBloom",
    "transactions_root": "transactionsRoot",
    "receipts_root": "receiptsRoot",
    "state_root": "stateRoot",
    "total_difficulty": "totalDifficulty",
    "mix_hash": "mixHash",
    "extra_data": "extraData",
    "gas_limit": "gasLimit",
    "gas_used": "gasUsed",
    "base_fee_per_gas": "baseFeePerGas",
    "coinbase": "miner",
    "withdrawals_root": "withdrawalsRoot",
    "blob_gas_used": "blobGasUsed",
    "excess_blob_gas": "excessBlobGas",
    "parent_beacon_block_root": "parentBeaconBlockRoot",
    "requests_hash": "requestsHash",
}
TRANSACTION = {
    "block_hash": "blockHash", "block_number": "blockNumber", "transaction_index": "transactionIndex", "data": "input",
    "gas_price": "gasPrice", "chain_id": "chainId", "max_fee_per_gas": "maxFeePerGas", "y_parity": "yParity",
    "max_priority_fee_per_gas": "maxPriorityFeePerGas", "access_list": "accessList",
}  # fmt: skip
RECEIPT = {
    "transaction_hash": "transactionHash", "transaction_index": "transactionIndex", "block_number": "blockNumber",
    "block_hash": "blockHash", "cumulative_gas_used": "cumulativeGasUsed", "gas_used": "gasUsed", "state_root": "root",
    "contract_address": "contractAddress", "effective_gas_price": "effectiveGasPrice", "logs_bloom": "logsBloom",
}  # fmt: skip
LOG = {
    "log_index": "logIndex", "transaction_index": "transactionIndex", "transaction_hash": "transactionHash",
    "block_hash": "blockHash", "block_number": "blockNumber",
}  # fmt: skip


def renamed(item: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in item.items()}


def encode(value: Any) -> Any:
    """Python values in the form of JSON-RPC: quantities and data in hex."""
    match value:
        case bool() | None:
            return value
        case int():
            return hex(value)
        case str():
            return value
        case bytes() | HexBytes():
            return "0x" + bytes(value).hex()
        case dict():
            return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return {key: encode(item) for key, item in dict(value).items()}
