package resp

// Kind is the type of a value: the first byte of its frame. The zero Kind is that
// of the zero [Value].
type Kind byte

// The kinds of RESP2 are SimpleString to Array; the rest came with RESP3.
const (
	SimpleString   Kind = '+'
	SimpleError    Kind = '-'
	Integer        Kind = ':'
	BulkString     Kind = '$'
	Array          Kind = '*'
	Null           Kind = '_' // of RESP3; in RESP2 a null is a BulkString or an Array, see [Value.IsNull]
	Boolean        Kind = '#'
	Double         Kind = ','
	BigNumber      Kind = '('
	BulkError      Kind = '!'
	VerbatimString Kind = '='
	Map            Kind = '%'
	Set            Kind = '~'
	Push           Kind = '>'
	Attribute      Kind = '|' // skipped by the reader: no Value is of this kind
)

// IsAggregate reports whether values of this kind have elements.
func (k Kind) IsAggregate() bool {
	switch k {
	case Array, Map, Set, Push, Attribute:
		return true
	}
	return false
}

// canName reports whether the name of a push can begin with a token of this kind.
func (k Kind) canName() bool {
	switch k {
	case SimpleString, BulkString, VerbatimString, Attribute:
		return true
	}
	return false
}

// String is the kind's name in the specification, such as "bulk string", or "no
// kind".
func (k Kind) String() string {
	switch k {
	case SimpleString:
		return "simple string"
	case SimpleError:
		return "simple error"
	case Integer:
		return "integer"
	case BulkString:
		return "bulk string"
	case Array:
		return "array"
	case Null:
		return "null"
	case Boolean:
		return "boolean"
	case Double:
		return "double"
	case BigNumber:
		return "big number"
	case BulkError:
		return "bulk error"
	case VerbatimString:
		return "verbatim string"
	case Map:
		return "map"
	case Set:
		return "set"
	case Push:
		return "push"
	case Attribute:
		return "attribute"
	}
	return "no kind"
}
